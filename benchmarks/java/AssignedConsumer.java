import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads one partition from its beginning with assign(), without a group. Prints the number of records, the bytes of their
 * values, and the seconds from the first poll to the poll that returns the last wanted record. Kafka's own
 * ConsumerPerformance always joins a group.
 *
 * <p>Run as source: {@code java -cp <kafka jars> AssignedConsumer.java HOST:PORT TOPIC RECORDS ISOLATION}
 */
public final class AssignedConsumer {
  private static final Duration POLL = Duration.ofMillis(500);
  private static final long PATIENCE_NANOS = 60_000_000_000L;

  private AssignedConsumer() {}

  public static void main(String[] arguments) {
    TopicPartition partition = new TopicPartition(arguments[1], 0);
    long wanted = Long.parseLong(arguments[2]);
    try (KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(
            Map.of("bootstrap.servers", arguments[0], "isolation.level", arguments[3]),
            new ByteArrayDeserializer(),
            new ByteArrayDeserializer())) {
      consumer.assign(List.of(partition));
      consumer.seekToBeginning(List.of(partition));
      long began = System.nanoTime();
      long latest = began;
      long records = 0;
      long bytes = 0;
      while (records < wanted) {
        ConsumerRecords<byte[], byte[]> polled = consumer.poll(POLL);
        long now = System.nanoTime();
        if (polled.isEmpty() && now - latest > PATIENCE_NANOS) {
          throw new IllegalStateException("no record for a minute, after " + records + " of " + wanted);
        }
        if (!polled.isEmpty()) {
          latest = now;
        }
        records += polled.count();
        for (var record : polled) {
          bytes += record.value().length;
        }
      }
      System.out.printf("%d %d %.6f%n", records, bytes, (latest - began) / 1e9);
    }
  }
}
