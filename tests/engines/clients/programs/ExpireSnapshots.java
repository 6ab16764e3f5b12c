import java.io.File;
import java.util.UUID;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.Files;
import org.apache.iceberg.LocationProviders;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.io.OutputFile;

/** Expires snapshots as engines do that leave the files to Iceberg's library; prints the new metadata file. */
public class ExpireSnapshots {
  public static void main(String[] arguments) {
    OneTable table = new OneTable(arguments[0]);
    new BaseTable(table, "table").expireSnapshots().expireOlderThan(Long.parseLong(arguments[1])).commit();
    System.out.println(table.place);
  }

  /** A table whose catalog is the name of its metadata file. */
  static class OneTable implements TableOperations {
    private final Folder folder = new Folder();
    private String place;

    OneTable(String place) {
      this.place = place;
    }

    public TableMetadata current() {
      return refresh();
    }

    public TableMetadata refresh() {
      return TableMetadataParser.read(folder, place);
    }

    public void commit(TableMetadata base, TableMetadata metadata) {
      place = metadataFileLocation("90000-" + UUID.randomUUID() + ".gz.metadata.json");
      TableMetadataParser.write(metadata, folder.newOutputFile(place));
    }

    public FileIO io() {
      return folder;
    }

    public String metadataFileLocation(String name) {
      return place.substring(0, place.lastIndexOf('/') + 1) + name;
    }

    public LocationProvider locationProvider() {
      return LocationProviders.locationsFor(current().location(), current().properties());
    }
  }

  /** Files by `file://` URIs. */
  static class Folder implements FileIO {
    public InputFile newInputFile(String uri) {
      return Files.localInput(path(uri));
    }

    public OutputFile newOutputFile(String uri) {
      return Files.localOutput(path(uri));
    }

    public void deleteFile(String uri) {
      new File(path(uri)).delete();
    }

    private static String path(String uri) {
      return uri.replaceFirst("^file:/*", "/");
    }
  }
}
