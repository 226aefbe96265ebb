import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs transactions as applications do, and times them after a warm-up of one second. Prints the number of transactions,
 * or with {@code copy} the number of records, and the seconds that they took.
 *
 * <p>Run as source. {@code java -cp <kafka jars> Transactions.java write HOST:PORT TOPIC SECONDS} runs transactions of ten
 * records of 100 bytes. {@code … copy HOST:PORT FROM TO SECONDS} fills the topic FROM, consumes it with a group, and
 * produces each record to TO. Each of its transactions has at most a hundred records and commits their offsets.
 */
public final class Transactions {
  private static final int RECORDS = 10;
  private static final int AT_ONCE = 100;
  private static final int FILLED = 1_000_000;
  private static final long WARM_NANOS = 1_000_000_000L;
  private static final long PATIENCE_NANOS = 60_000_000_000L;
  private static final byte[] VALUE = new byte[100];

  private Transactions() {}

  public static void main(String[] arguments) {
    String address = arguments[1];
    if (arguments[0].equals("write")) {
      write(address, arguments[2], seconds(arguments[3]));
    } else {
      copy(address, arguments[2], arguments[3], seconds(arguments[4]));
    }
  }

  private static long seconds(String text) {
    return (long) (Double.parseDouble(text) * 1e9);
  }

  private static KafkaProducer<byte[], byte[]> producer(String address, String transactionalId) {
    Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", address));
    if (!transactionalId.isEmpty()) {
      settings.put("transactional.id", transactionalId);
    }
    return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
  }

  private static void write(String address, String topic, long nanos) {
    try (KafkaProducer<byte[], byte[]> producer = producer(address, topic)) {
      producer.initTransactions();
      long began = System.nanoTime() + WARM_NANOS;
      long now = System.nanoTime();
      long counted = 0;
      long first = now;
      while (now < began + nanos) {
        producer.beginTransaction();
        for (int record = 0; record < RECORDS; record++) {
          producer.send(new ProducerRecord<>(topic, VALUE));
        }
        producer.commitTransaction();
        now = System.nanoTime();
        if (now < began) {
          first = now;
        } else {
          counted++;
        }
      }
      System.out.printf("%d %.6f%n", counted, (now - first) / 1e9);
    }
  }

  private static void copy(String address, String from, String to, long nanos) {
    Map<String, Object> settings =
        Map.of(
            "bootstrap.servers", address,
            "group.id", from,
            "auto.offset.reset", "earliest",
            "enable.auto.commit", false,
            "isolation.level", "read_committed",
            "max.poll.records", AT_ONCE);
    try (KafkaProducer<byte[], byte[]> filling = producer(address, "")) {
      for (int record = 0; record < FILLED; record++) {
        filling.send(new ProducerRecord<>(from, VALUE));
      }
    }
    try (KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        KafkaProducer<byte[], byte[]> producer = producer(address, to)) {
      producer.initTransactions();
      consumer.subscribe(List.of(from));
      long began = 0;
      long first = 0;
      long now = System.nanoTime();
      long called = now;
      long counted = 0;
      while (began == 0 || now < began + nanos) {
        ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(500));
        now = System.nanoTime();
        if (polled.isEmpty()) {
          if (began != 0 || now - called > PATIENCE_NANOS) {
            throw new IllegalStateException("a poll returned no records, after " + counted + " were copied");
          }
          continue;
        }
        if (began == 0) {
          began = now + WARM_NANOS;
        }
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (var record : polled) {
          producer.send(new ProducerRecord<>(to, record.value()));
          offsets.put(
              new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
        now = System.nanoTime();
        if (now < began) {
          first = now;
        } else {
          counted += polled.count();
        }
      }
      System.out.printf("%d %.6f%n", counted, (now - first) / 1e9);
    }
  }
}
