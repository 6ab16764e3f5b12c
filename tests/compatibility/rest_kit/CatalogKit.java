package org.apache.iceberg.rest;

import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.junit.jupiter.api.AfterEach;

/** The kit's tests of namespaces and tables, with places of this run's own and with what the kit cannot be told. */
public class CatalogKit extends RESTCompatibilityKitCatalogTests {
  private static final Namespace NESTED = Namespace.of("parent");

  @Override
  protected String baseTableLocation(TableIdentifier table) {
    return System.getProperty("kit.locations") + "/" + table.namespace() + "/" + table.name();
  }

  @Override
  protected boolean supportsNestedNamespaces() {
    return true;
  }

  /** The kit leaves the namespaces of one test behind, and the next one expects that they are not there. */
  @AfterEach
  void dropNestedNamespaces() {
    if (catalog().namespaceExists(NESTED)) {
      drop(NESTED);
    }
  }

  private void drop(Namespace namespace) {
    catalog().listNamespaces(namespace).forEach(this::drop);
    catalog().dropNamespace(namespace);
  }
}
