import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Producers and consumers, by the number that opening them gave. */
final class Traffic {
    private final AtomicInteger numbers = new AtomicInteger();
    private final Map<Integer, Producing> producers = new ConcurrentHashMap<>();
    private final Map<Integer, KafkaConsumer<byte[], byte[]>> consumers = new ConcurrentHashMap<>();

    Object run(String op, JsonNode args) throws Exception {
        int number = args.path("on").asInt();
        return switch (op) {
            case "open_producer" -> openProducer(args);
            case "send" -> producers.get(number).send(args);
            case "finish" -> producers.remove(number).finish();
            case "init_transactions" -> initTransactions(args);
            case "open_consumer" -> openConsumer(args);
            case "assign" -> assign(consumers.get(number), args);
            case "subscribe" -> subscribe(consumers.get(number), args);
            case "poll" -> poll(consumers.get(number), args);
            case "assignment" -> places(consumers.get(number));
            case "commit" -> commit(consumers.get(number));
            case "offset_for_time" -> offsetForTime(consumers.get(number), args);
            case "close_consumer" -> closeConsumer(number);
            default -> throw new IllegalArgumentException(op);
        };
    }

    /** A producer and what was sent through it. */
    private record Producing(KafkaProducer<byte[], byte[]> producer, List<Object> sent) {
        Object send(JsonNode args) throws IOException {
            JsonNode partition = args.get("partition");
            JsonNode timestamp = args.get("timestamp");
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                args.get("topic").asText(),
                partition.isNull() ? null : partition.asInt(),
                timestamp.isNull() ? null : timestamp.asLong(),
                bytes(args.get("key")),
                bytes(args.get("value")));
            for (JsonNode header : args.get("headers")) {
                record.headers().add(header.get(0).asText(), bytes(header.get(1)));
            }
            try {
                sent.add(producer.send(record));
            } catch (RuntimeException refused) {
                sent.add(refused);
            }
            return null;
        }

        @SuppressWarnings("unchecked")
        Object finish() throws InterruptedException {
            ArrayNode answers = Remote.JSON.createArrayNode();
            for (Object each : sent) {
                ObjectNode answer = answers.addObject();
                try {
                    if (each instanceof RuntimeException refused) {
                        throw refused;
                    }
                    RecordMetadata where = ((Future<RecordMetadata>) each).get();
                    answer.put("partition", where.partition()).put("offset", where.offset());
                } catch (ExecutionException | RuntimeException failure) {
                    answer.put("code", Remote.code(failure)).put("error", failure.toString());
                }
            }
            producer.close();
            return answers;
        }
    }

    private Object openProducer(JsonNode args) {
        int number = numbers.incrementAndGet();
        Map<String, Object> config = config(args);
        ByteArraySerializer bytes = new ByteArraySerializer();
        producers.put(number, new Producing(new KafkaProducer<>(config, bytes, bytes), new ArrayList<>()));
        return number;
    }

    private Object initTransactions(JsonNode args) {
        ByteArraySerializer bytes = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config(args), bytes, bytes);
        try {
            producer.initTransactions();
        } finally {
            producer.close(Duration.ZERO);
        }
        return null;
    }

    private Object openConsumer(JsonNode args) {
        int number = numbers.incrementAndGet();
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        consumers.put(number, new KafkaConsumer<>(config(args), bytes, bytes));
        return number;
    }

    private static Object assign(KafkaConsumer<?, ?> consumer, JsonNode args) {
        Map<TopicPartition, JsonNode> starts = new LinkedHashMap<>();
        for (JsonNode each : args.get("starts")) {
            starts.put(new TopicPartition(each.get(0).asText(), each.get(1).asInt()), each.get(2));
        }
        consumer.assign(starts.keySet());
        starts.forEach((place, start) -> {
            if (!start.isNull()) {
                consumer.seek(place, start.asLong());
            }
        });
        return null;
    }

    private static Object subscribe(KafkaConsumer<?, ?> consumer, JsonNode args) {
        List<String> topics = new ArrayList<>();
        args.get("topics").forEach(topic -> topics.add(topic.asText()));
        consumer.subscribe(topics);
        return null;
    }

    private static Object poll(KafkaConsumer<byte[], byte[]> consumer, JsonNode args) {
        ArrayNode found = Remote.JSON.createArrayNode();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(args.get("wait_ms").asLong()))) {
            ObjectNode one = found.addObject();
            one.put("topic", record.topic()).put("partition", record.partition()).put("offset", record.offset());
            one.put("timestamp_ms", record.timestamp()).put("timestamp_type", record.timestampType().id);
            one.put("key", text(record.key())).put("value", text(record.value()));
            ArrayNode headers = one.putArray("headers");
            for (Header header : record.headers()) {
                headers.addArray().add(header.key()).add(text(header.value()));
            }
        }
        return found;
    }

    private static Object places(KafkaConsumer<?, ?> consumer) {
        ArrayNode places = Remote.JSON.createArrayNode();
        consumer.assignment().forEach(place -> places.addArray().add(place.topic()).add(place.partition()));
        return places;
    }

    private static Object commit(KafkaConsumer<?, ?> consumer) {
        consumer.commitSync();
        return null;
    }

    private static Object offsetForTime(KafkaConsumer<?, ?> consumer, JsonNode args) {
        TopicPartition place = new TopicPartition(args.get("topic").asText(), args.get("partition").asInt());
        OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, args.get("timestamp").asLong())).get(place);
        return found == null ? null : found.offset();
    }

    private Object closeConsumer(int number) {
        consumers.remove(number).close();
        return null;
    }

    static Map<String, Object> config(JsonNode args) {
        Map<String, Object> config = new HashMap<>();
        args.get("config").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        return config;
    }

    static byte[] bytes(JsonNode text) throws IOException {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
