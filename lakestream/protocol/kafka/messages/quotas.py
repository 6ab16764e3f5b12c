"""Client quotas: DescribeClientQuotas."""

from lakestream.protocol.kafka.messages.types import Bool, Float64, Int8, Int16, Int32, field, message


@message
class ClientQuotaFilter:
    entity_type: str = ""
    match_type: Int8 = 0
    match: str | None = None


@message
class DescribeClientQuotasRequest:
    components: list[ClientQuotaFilter] = field(factory=list)
    strict: Bool = False


@message
class ClientQuotaEntity:
    entity_type: str = ""
    entity_name: str | None = None


@message
class ClientQuotaValue:
    key: str = ""
    value: Float64 = 0.0


@message
class ClientQuotaEntry:
    entity: list[ClientQuotaEntity] = field(factory=list)
    values: list[ClientQuotaValue] = field(factory=list)


@message
class DescribeClientQuotasResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    entries: list[ClientQuotaEntry] | None = field(factory=list)
