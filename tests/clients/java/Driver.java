import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

/**
 * Java's producer, with and without transactions, its consumer under assign() and as members of a group, and every tool of Kafka's jars, asked in lines of JSON
 * (tests/support/talker.py) in one process: a start of Java takes longer than the work. Bytes travel as base64.
 */
public final class Driver {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Duration POLL = Duration.ofMillis(200);
  private static final long PATIENCE_NANOS = 60_000_000_000L;
  /** Consumers kept between questions, by name. */
  private static final Map<String, KafkaConsumer<byte[], byte[]>> CONSUMERS = new HashMap<>();

  private Driver() {}

  public static void main(String[] none) throws IOException {
    PrintStream answers = System.out;
    Redirected printed = new Redirected();
    // Tools keep the stream that they find first, so the one stream stays, and what is behind it changes.
    System.setOut(new PrintStream(printed, true));
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        answer.set("result", result(JSON.readTree(line), printed));
      } catch (Throwable error) {
        answer.put("error", error.toString());
      }
      answers.println(answer);
      answers.flush();
    }
    System.exit(0);
  }

  private static JsonNode result(JsonNode question, Redirected printed) throws Throwable {
    switch (question.get("command").asText()) {
      case "produce":
        return produce(question);
      case "transact":
        return transact(question);
      case "open":
        return open(question);
      case "poll":
        return poll(question);
      case "share":
        return share(question);
      case "commit":
        return commit(question);
      case "committed":
        return committed(question);
      case "seek":
        CONSUMERS.get(question.get("name").asText()).seek(partition(question), question.get("offset").asLong());
        return JSON.nullNode();
      case "pause":
        CONSUMERS.get(question.get("name").asText()).pause(List.of(partition(question)));
        return JSON.nullNode();
      case "resume":
        CONSUMERS.get(question.get("name").asText()).resume(List.of(partition(question)));
        return JSON.nullNode();
      case "copy":
        return copy(question);
      case "fence":
        return fence(question);
      case "close":
        CONSUMERS.remove(question.get("name").asText()).close();
        return JSON.nullNode();
      case "tool":
        return tool(question, printed);
      default:
        throw new IllegalArgumentException("no such command: " + question);
    }
  }

  private static Map<String, Object> configs(JsonNode question) {
    Map<String, Object> configs = new HashMap<>();
    configs.put("bootstrap.servers", question.get("bootstrap").asText());
    question.path("configs").fields().forEachRemaining(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
    return configs;
  }

  // --- records --------------------------------------------------------------------------------------------------------
  /** Offset, timestamp and serialized size of what was acknowledged, or the name of the error. */
  private static JsonNode produce(JsonNode question) throws Throwable {
    ArrayNode acknowledged = JSON.createArrayNode();
    List<Future<RecordMetadata>> sent = new ArrayList<>();
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(configs(question), new ByteArraySerializer(), new ByteArraySerializer())) {
      for (JsonNode record : question.get("records")) {
        sent.add(producer.send(toSend(question, record)));
      }
    }
    for (Future<RecordMetadata> each : sent) {
      ObjectNode one = acknowledged.addObject();
      try {
        RecordMetadata metadata = each.get();
        one.put("partition", metadata.partition()).put("offset", metadata.offset()).put("timestamp", metadata.timestamp());
      } catch (ExecutionException error) {
        one.put("error", error.getCause().getClass().getSimpleName());
      }
    }
    return acknowledged;
  }

  /** Transactions of one producer, one after the other; each is a list of records, committed unless "aborts" names its place. */
  private static JsonNode transact(JsonNode question) throws Throwable {
    List<Integer> aborts = new ArrayList<>();
    question.path("aborts").forEach(each -> aborts.add(each.asInt()));
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(configs(question), new ByteArraySerializer(), new ByteArraySerializer())) {
      producer.initTransactions();
      int place = 0;
      for (JsonNode records : question.get("transactions")) {
        producer.beginTransaction();
        for (JsonNode record : records) {
          producer.send(toSend(question, record));
        }
        producer.flush();
        if (aborts.contains(place++)) {
          producer.abortTransaction();
        } else {
          producer.commitTransaction();
        }
      }
    }
    return JSON.nullNode();
  }

  private static ProducerRecord<byte[], byte[]> toSend(JsonNode question, JsonNode record) throws IOException {
    Integer partition = record.has("partition") ? record.get("partition").asInt() : null;
    Long timestamp = record.path("timestamp").isNumber() ? record.get("timestamp").asLong() : null;
    ProducerRecord<byte[], byte[]> made =
        new ProducerRecord<>(
            question.get("topic").asText(), partition, timestamp, bytes(record.get("key")), bytes(record.get("value")));
    for (JsonNode header : record.path("headers")) {
      made.headers().add(header.get(0).asText(), bytes(header.get(1)));
    }
    return made;
  }

  private static byte[] bytes(JsonNode node) throws IOException {
    return node == null || node.isNull() ? null : node.binaryValue();
  }

  /** A consumer of the given partitions, each [topic, partition, offset, leader epoch or null], or one that subscribes to a topic. */
  private static JsonNode open(JsonNode question) {
    KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(configs(question), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    CONSUMERS.put(question.get("name").asText(), consumer);
    if (question.has("pattern")) {
      consumer.subscribe(Pattern.compile(question.get("pattern").asText()));
      return JSON.nullNode();
    }
    if (question.has("subscribe")) {
      consumer.subscribe(List.of(question.get("subscribe").asText()));
      return JSON.nullNode();
    }
    Map<TopicPartition, JsonNode> places = new HashMap<>();
    for (JsonNode place : question.get("partitions")) {
      places.put(new TopicPartition(place.get(0).asText(), place.get(1).asInt()), place);
    }
    consumer.assign(places.keySet());
    places.forEach(
        (partition, place) -> {
          Optional<Integer> epoch = place.get(3).isNull() ? Optional.empty() : Optional.of(place.get(3).asInt());
          consumer.seek(partition, new OffsetAndMetadata(place.get(2).asLong(), epoch, ""));
        });
    return JSON.nullNode();
  }

  /** At least as many records as asked for; an exception of the consumer ends it. */
  private static JsonNode poll(JsonNode question) {
    KafkaConsumer<byte[], byte[]> consumer = CONSUMERS.get(question.get("name").asText());
    ArrayNode found = JSON.createArrayNode();
    long wanted = question.get("count").asLong();
    long latest = System.nanoTime();
    while (found.size() < wanted) {
      int before = found.size();
      for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
        found.add(described(record));
      }
      if (found.size() > before) {
        latest = System.nanoTime();
      } else if (System.nanoTime() - latest > PATIENCE_NANOS) {
        throw new IllegalStateException("no record for a minute, after " + before + " of " + wanted);
      }
    }
    return found;
  }

  /** Polls the named members until each has as many partitions as asked for; the partitions of each. */
  private static JsonNode share(JsonNode question) {
    List<KafkaConsumer<byte[], byte[]>> members = new ArrayList<>();
    question.get("names").forEach(name -> members.add(CONSUMERS.get(name.asText())));
    int wanted = question.get("each").asInt();
    long began = System.nanoTime();
    while (!members.stream().allMatch(member -> member.assignment().size() == wanted)) {
      if (System.nanoTime() - began > PATIENCE_NANOS) {
        throw new IllegalStateException("the members have not shared the partitions within a minute");
      }
      members.forEach(member -> member.poll(POLL));
    }
    ArrayNode found = JSON.createArrayNode();
    for (KafkaConsumer<byte[], byte[]> member : members) {
      ArrayNode own = found.addArray();
      boolean whole = question.path("whole").asBoolean();
      member.assignment().forEach(each -> own.addPOJO(whole ? (Object) each.toString() : (Object) each.partition()));
    }
    return found;
  }

  // --- members --------------------------------------------------------------------------------------------------------
  private static TopicPartition partition(JsonNode question) {
    return new TopicPartition(question.get("topic").asText(), question.get("partition").asInt());
  }

  /** The offsets given, or the positions; "async" waits for its callback only. */
  private static JsonNode commit(JsonNode question) throws Throwable {
    KafkaConsumer<byte[], byte[]> consumer = CONSUMERS.get(question.get("name").asText());
    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
    question
        .path("offsets")
        .fields()
        .forEachRemaining(
            entry ->
                offsets.put(
                    new TopicPartition(question.get("topic").asText(), Integer.parseInt(entry.getKey())),
                    new OffsetAndMetadata(entry.getValue().asLong())));
    if (question.path("async").asBoolean()) {
      CompletableFuture<Void> done = new CompletableFuture<>();
      consumer.commitAsync(
          (places, error) -> {
            if (error == null) {
              done.complete(null);
            } else {
              done.completeExceptionally(error);
            }
          });
      while (!done.isDone()) {
        consumer.poll(POLL);
      }
      done.get();
    } else if (offsets.isEmpty()) {
      consumer.commitSync();
    } else {
      consumer.commitSync(offsets);
    }
    return JSON.nullNode();
  }

  /** The committed offset of each of a topic's first partitions, null where there is none. */
  private static JsonNode committed(JsonNode question) {
    ArrayNode found = JSON.createArrayNode();
    for (int number = 0; number < question.get("partitions").asInt(); number++) {
      TopicPartition partition = new TopicPartition(question.get("topic").asText(), number);
      OffsetAndMetadata place =
          CONSUMERS.get(question.get("name").asText()).committed(java.util.Set.of(partition)).get(partition);
      if (place == null) {
        found.addNull();
      } else {
        found.add(place.offset());
      }
    }
    return found;
  }

  /** Copies records of an open member in transactions that carry its offsets, until "count"; the first one is aborted. */
  private static JsonNode copy(JsonNode question) {
    KafkaConsumer<byte[], byte[]> consumer = CONSUMERS.get(question.get("name").asText());
    int copied = 0;
    boolean aborted = false;
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(configs(question), new ByteArraySerializer(), new ByteArraySerializer())) {
      producer.initTransactions();
      while (copied < question.get("count").asInt()) {
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        Map<TopicPartition, Long> begins = new HashMap<>();
        int many = 0;
        producer.beginTransaction();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
          producer.send(new ProducerRecord<>(question.get("topic").asText(), record.partition(), null, record.value()));
          TopicPartition place = new TopicPartition(record.topic(), record.partition());
          begins.putIfAbsent(place, record.offset());
          ends.put(place, new OffsetAndMetadata(record.offset() + 1));
          many++;
        }
        producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
        if (aborted || many == 0) {
          producer.commitTransaction();
          copied += many;
        } else {
          aborted = true;
          producer.flush();
          producer.abortTransaction();
          begins.forEach(consumer::seek);
        }
      }
    }
    return JSON.getNodeFactory().numberNode(copied);
  }

  /** The name of the error of a producer whose id another took over within a transaction. */
  private static JsonNode fence(JsonNode question) {
    ByteArraySerializer bytes = new ByteArraySerializer();
    String topic = question.get("topic").asText();
    try (KafkaProducer<byte[], byte[]> old = new KafkaProducer<>(configs(question), bytes, bytes);
        KafkaProducer<byte[], byte[]> young = new KafkaProducer<>(configs(question), bytes, bytes)) {
      old.initTransactions();
      old.beginTransaction();
      old.send(new ProducerRecord<>(topic, 0, null, "of the old one".getBytes(StandardCharsets.UTF_8)));
      old.flush();
      young.initTransactions();
      young.beginTransaction();
      young.send(new ProducerRecord<>(topic, 0, null, "of the new one".getBytes(StandardCharsets.UTF_8)));
      try {
        old.commitTransaction();
        return JSON.nullNode();
      } catch (KafkaException error) {
        return JSON.getNodeFactory().textNode(error.getClass().getSimpleName());
      } finally {
        young.commitTransaction();
      }
    }
  }

  private static ObjectNode described(ConsumerRecord<byte[], byte[]> record) {
    ObjectNode one = JSON.createObjectNode();
    one.put("topic", record.topic()).put("partition", record.partition()).put("offset", record.offset());
    one.put("timestamp", record.timestamp()).put("timestamp_type", record.timestampType().name);
    one.put("key", record.key()).put("value", record.value()).put("epoch", record.leaderEpoch().orElse(-1));
    ArrayNode headers = one.putArray("headers");
    for (Header header : record.headers()) {
      headers.addArray().add(header.key()).add(header.value());
    }
    return one;
  }

  // --- tools ----------------------------------------------------------------------------------------------------------
  /** What the tool printed to either stream, in order, and how it ended. */
  private static JsonNode tool(JsonNode question, Redirected printed) throws Throwable {
    List<String> arguments = new ArrayList<>();
    question.get("arguments").forEach(each -> arguments.add(each.asText()));
    List<Integer> statuses = new ArrayList<>();
    Exit.Procedure end =
        (status, message) -> {
          if (statuses.isEmpty()) {
            statuses.add(status);
            System.out.println(message == null ? "" : message);
            // Some tools catch what is thrown here, and would print it.
            printed.to = OutputStream.nullOutputStream();
          }
          throw new Ended();
        };
    Exit.setExitProcedure(end);
    Exit.setHaltProcedure(end);
    List<Runnable> hooks = new ArrayList<>();
    Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
    ByteArrayOutputStream text = new ByteArrayOutputStream();
    PrintStream errors = System.err;
    InputStream input = System.in;
    printed.to = text;
    System.setErr(System.out);
    System.setIn(new java.io.ByteArrayInputStream(question.path("input").asText().getBytes(StandardCharsets.UTF_8)));
    try {
      run(question.get("tool").asText(), arguments.toArray(new String[0]), statuses);
      hooks.forEach(Runnable::run);
    } finally {
      System.out.flush();
      System.setErr(errors);
      System.setIn(input);
      printed.to = OutputStream.nullOutputStream();
    }
    return JSON.createObjectNode().put("status", statuses.get(0)).put("printed", text.toString(StandardCharsets.UTF_8));
  }

  private static void run(String name, String[] arguments, List<Integer> statuses) throws Throwable {
    try {
      Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
      statuses.add(0);
    } catch (InvocationTargetException wrapped) {
      if (!(wrapped.getCause() instanceof Ended)) {
        // As Java itself ends a program.
        System.out.println(wrapped.getCause());
        statuses.add(1);
      }
    }
  }

  /** In place of the end of the process. */
  private static final class Ended extends Error {
    private static final long serialVersionUID = 1L;
  }

  private static final class Redirected extends OutputStream {
    volatile OutputStream to = OutputStream.nullOutputStream();

    @Override
    public void write(int one) throws IOException {
      to.write(one);
    }

    @Override
    public void write(byte[] many, int from, int length) throws IOException {
      to.write(many, from, length);
    }
  }
}
