// Sends records to a tidelog node over gRPC and reads a topic, with classes generated from the .proto files alone.
//
//     mvn -q compile exec:java -Dexec.mainClass=Main -Dexec.args="ADDRESS TOPIC VALUE..."
//
// Each VALUE is sent with the key "java" and a header. Then every record of the topic is printed as a line of JSON.

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.protobuf.ByteString;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import tidelog.v1.ReadRecord;
import tidelog.v1.ReadRequest;
import tidelog.v1.RecordHeader;
import tidelog.v1.RecordToSend;
import tidelog.v1.RecordsGrpc;
import tidelog.v1.RecordsGrpc.RecordsBlockingStub;
import tidelog.v1.SendRequest;
import tidelog.v1.SentRecord;

public final class Main {
  private static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
  private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

  public static void main(String[] args) {
    if (args.length < 2) {
      System.err.println("usage: Main ADDRESS TOPIC VALUE...");
      System.exit(2);
    }
    ManagedChannel channel = Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create()).build();
    try {
      var records = RecordsGrpc.newBlockingStub(channel);
      send(records, args[1], List.of(args).subList(2, args.length));
      read(records, args[1]);
    } catch (StatusRuntimeException | IllegalStateException error) {
      System.err.println(error.getMessage());
      System.exit(1);
    } finally {
      channel.shutdownNow();
    }
  }

  private static void send(RecordsBlockingStub records, String topic, List<String> values) {
    SendRequest.Builder request = SendRequest.newBuilder().setTopic(topic);
    for (String value : values) {
      request.addRecords(
          RecordToSend.newBuilder()
              .setKey(ByteString.copyFromUtf8("java"))
              .setValue(ByteString.copyFromUtf8(value))
              .addHeaders(RecordHeader.newBuilder().setName("language").setValue(ByteString.copyFromUtf8("Java"))));
    }
    for (SentRecord sent : records.send(request.build()).getRecordsList()) {
      if (sent.hasError()) {
        throw new IllegalStateException(sent.getError().getMessage());
      }
    }
  }

  private static void read(RecordsBlockingStub records, String topic) {
    ReadRequest request = ReadRequest.newBuilder().setTopic(topic).setUntilEnd(true).build();
    records.read(request).forEachRemaining(
        response -> response.getRecordsList().forEach(record -> OUT.println(JSON.toJson(line(record)))));
  }

  private static Map<String, Object> line(ReadRecord record) {
    Map<String, String> headers = new LinkedHashMap<>();
    record.getHeadersList().forEach(header -> headers.put(header.getName(), header.getValue().toStringUtf8()));
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("partition", record.getPartition());
    line.put("offset", record.getOffset());
    line.put("timestamp_ms", record.getTimestampMs());
    line.put("key", record.hasKey() ? record.getKey().toStringUtf8() : null);
    line.put("value", record.hasValue() ? record.getValue().toStringUtf8() : null);
    line.put("headers", headers);
    return line;
  }
}
