import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

/** What the Java Admin can ask for, one call an operation; the arguments are the members of a JSON object. */
final class Administration {
    Object run(String op, JsonNode args) throws Exception {
        try (Admin admin = Admin.create(Traffic.config(args))) {
            return switch (op) {
                case "create_topic" -> createTopic(admin, args);
                case "delete_topic" -> admin.deleteTopics(List.of(topic(args))).all().get();
                case "list_topics" -> admin.listTopics().names().get();
                case "describe_topic" -> describeTopic(admin, args);
                case "create_partitions" ->
                    admin.createPartitions(Map.of(topic(args), NewPartitions.increaseTo(args.get("count").asInt()))).all().get();
                case "describe_configs" -> describeConfigs(admin, args);
                case "alter_config" -> alterConfig(admin, args);
                case "delete_records" -> deleteRecords(admin, args);
                case "list_offset" -> listOffset(admin, args);
                case "describe_cluster" -> describeCluster(admin);
                case "list_groups" -> listGroups(admin);
                case "describe_group" -> describeGroup(admin, args);
                case "group_offsets" -> groupOffsets(admin, args);
                case "alter_group_offset" -> alterGroupOffset(admin, args);
                case "delete_group_offset" ->
                    admin.deleteConsumerGroupOffsets(group(args), java.util.Set.of(place(args))).all().get();
                case "delete_group" -> admin.deleteConsumerGroups(List.of(group(args))).all().get();
                default -> throw new IllegalArgumentException(op);
            };
        }
    }

    private static Object createTopic(Admin admin, JsonNode args) throws Exception {
        Map<String, String> configs = new HashMap<>();
        args.get("configs").fields().forEachRemaining(each -> configs.put(each.getKey(), each.getValue().asText()));
        NewTopic topic = new NewTopic(
            topic(args),
            Optional.of(args.get("partitions").asInt()).filter(count -> count > 0),
            Optional.of((short) args.get("replicas").asInt()).filter(count -> count > 0));
        CreateTopicsResult result = admin.createTopics(List.of(topic.configs(configs)));
        result.all().get();
        return Map.of(
            "partitions", result.numPartitions(topic.name()).get(),
            "replicas", result.replicationFactor(topic.name()).get(),
            "id", result.topicId(topic.name()).get().toString());
    }

    private static Object describeTopic(Admin admin, JsonNode args) throws Exception {
        TopicDescription found = admin.describeTopics(List.of(topic(args))).allTopicNames().get().get(topic(args));
        List<Object> partitions = new ArrayList<>();
        for (TopicPartitionInfo each : found.partitions()) {
            partitions.add(Map.of("leader", each.leader().id(), "replicas", each.replicas().size(), "isr", each.isr().size()));
        }
        return Map.of("id", found.topicId().toString(), "internal", found.isInternal(), "partitions", partitions);
    }

    private static Object describeConfigs(Admin admin, JsonNode args) throws Exception {
        ConfigResource resource = resource(args);
        Map<String, Object> found = new TreeMap<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            found.put(entry.name(), List.of(String.valueOf(entry.value()), entry.source().name(), entry.isReadOnly()));
        }
        return found;
    }

    private static Object alterConfig(Admin admin, JsonNode args) throws Exception {
        AlterConfigOp.OpType kind = AlterConfigOp.OpType.valueOf(args.get("how").asText());
        ConfigEntry entry = new ConfigEntry(args.get("name").asText(), args.get("value").asText());
        Collection<AlterConfigOp> ops = List.of(new AlterConfigOp(entry, kind));
        return admin.incrementalAlterConfigs(Map.of(resource(args), ops)).all().get();
    }

    private static Object deleteRecords(Admin admin, JsonNode args) throws Exception {
        RecordsToDelete before = RecordsToDelete.beforeOffset(args.get("before").asLong());
        return admin.deleteRecords(Map.of(place(args), before)).lowWatermarks().get(place(args)).get().lowWatermark();
    }

    private static Object listOffset(Admin admin, JsonNode args) throws Exception {
        OffsetSpec spec = switch (args.get("spec").asText()) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            case "max_timestamp" -> OffsetSpec.maxTimestamp();
            default -> OffsetSpec.forTimestamp(args.get("spec").asLong());
        };
        ListOffsetsResultInfo found = admin.listOffsets(Map.of(place(args), spec)).partitionResult(place(args)).get();
        return List.of(found.offset(), found.timestamp());
    }

    private static Object describeCluster(Admin admin) throws Exception {
        var found = admin.describeCluster();
        List<Integer> nodes = found.nodes().get().stream().map(node -> node.id()).sorted().toList();
        return Map.of("id", found.clusterId().get(), "controller", found.controller().get().id(), "nodes", nodes);
    }

    private static Object listGroups(Admin admin) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        for (GroupListing each : admin.listGroups().all().get()) {
            found.put(each.groupId(), List.of(each.protocol(), each.groupState().map(Object::toString).orElse("")));
        }
        return found;
    }

    private static Object describeGroup(Admin admin, JsonNode args) throws Exception {
        ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group(args))).all().get().get(group(args));
        List<Object> members = new ArrayList<>();
        found.members().forEach(each -> members.add(Map.of(
            "client", each.clientId(),
            "host", each.host(),
            "instance", each.groupInstanceId().orElse(""),
            "partitions", each.assignment().topicPartitions().size())));
        return Map.of(
            "state", found.groupState().toString(), "assignor", found.partitionAssignor(),
            "coordinator", found.coordinator().id(), "members", members);
    }

    private static Object groupOffsets(Admin admin, JsonNode args) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        var offsets = admin.listConsumerGroupOffsets(group(args)).partitionsToOffsetAndMetadata().get();
        offsets.forEach((place, offset) -> found.put(place.toString(), offset == null ? null : offset.offset()));
        return found;
    }

    private static Object alterGroupOffset(Admin admin, JsonNode args) throws Exception {
        OffsetAndMetadata offset = new OffsetAndMetadata(args.get("offset").asLong(), "set by a test");
        return admin.alterConsumerGroupOffsets(group(args), Map.of(place(args), offset)).all().get();
    }

    private static String topic(JsonNode args) {
        return args.get("topic").asText();
    }

    private static String group(JsonNode args) {
        return args.get("group").asText();
    }

    private static TopicPartition place(JsonNode args) {
        return new TopicPartition(topic(args), args.get("partition").asInt());
    }

    private static ConfigResource resource(JsonNode args) {
        return new ConfigResource(ConfigResource.Type.valueOf(args.get("kind").asText()), args.get("resource").asText());
    }
}
