import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.common.protocol.Errors;

/**
 * Puts the Java client in the hands of a test: one JSON request a line on standard input, one answer a line on standard
 * output, in any order. {"id": 1, "op": "poll", "args": {...}} is answered by {"id": 1, "result": ...} or by
 * {"id": 1, "code": 10, "error": "..."} with the number that the protocol gives the error, -1 if it knows none.
 */
public final class Remote {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] argv) throws Exception {
        PrintStream out = System.out;
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        Traffic traffic = new Traffic();
        Administration administration = new Administration();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            threads.execute(() -> {
                ObjectNode answer = answer(traffic, administration, request);
                synchronized (out) {
                    out.println(answer);
                    out.flush();
                }
            });
        }
        System.exit(0);
    }

    private static ObjectNode answer(Traffic traffic, Administration administration, JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("id", request.get("id"));
        String op = request.get("op").asText();
        JsonNode args = request.get("args");
        try {
            Object result = op.startsWith("admin.")
                ? administration.run(op.substring("admin.".length()), args)
                : traffic.run(op, args);
            answer.set("result", JSON.valueToTree(result));
        } catch (Throwable failure) {
            Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
            answer.put("code", code(cause));
            answer.put("error", cause.toString());
        }
        return answer;
    }

    static int code(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            Errors error = Errors.forException(cause);
            if (error != Errors.UNKNOWN_SERVER_ERROR) {
                return error.code();
            }
        }
        return Errors.UNKNOWN_SERVER_ERROR.code();
    }

    private Remote() {}
}
