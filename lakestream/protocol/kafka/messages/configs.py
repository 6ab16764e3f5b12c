"""Settings of topics and brokers: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from lakestream.protocol.kafka.messages.types import Bool, Int8, Int16, Int32, field, message


@message
class DescribeConfigsResource:
    resource_type: Int8 = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = field(factory=list)


@message
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = field(factory=list)
    include_synonyms: Bool = False
    include_documentation: Bool = field(since=3, default=False)


@message
class DescribeConfigsSynonym:
    name: str = ""
    value: str | None = None
    source: Int8 = 0


@message
class DescribeConfigsResourceResult:
    name: str = ""
    value: str | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = field(factory=list)
    config_type: Int8 = field(since=3, default=0)
    documentation: str | None = field(since=3, default=None)


@message
class DescribeConfigsResult:
    error_code: Int16 = 0
    error_message: str | None = None
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = field(factory=list)


@message
class DescribeConfigsResponse:
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = field(factory=list)


@message
class AlterableConfig:
    name: str = ""
    config_operation: Int8 = 0
    value: str | None = None


@message
class AlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = field(factory=list)


@message
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource] = field(factory=list)
    validate_only: Bool = False


@message
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: str | None = None
    resource_type: Int8 = 0
    resource_name: str = ""


@message
class IncrementalAlterConfigsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field(factory=list)


@message
class ReplacingConfig:
    name: str = ""
    value: str | None = None


@message
class ReplacingConfigsResource:
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[ReplacingConfig] = field(factory=list)


@message
class AlterConfigsRequest:
    resources: list[ReplacingConfigsResource] = field(factory=list)
    validate_only: Bool = False


@message
class AlterConfigsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = field(factory=list)


@message
class ListConfigResourcesRequest:
    resource_types: list[Int8] = field(since=1, factory=list)


@message
class ListedConfigResource:
    resource_name: str = ""
    resource_type: Int8 = field(since=1, default=16)


@message
class ListConfigResourcesResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ListedConfigResource] = field(factory=list)
