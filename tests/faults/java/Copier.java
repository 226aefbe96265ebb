import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Copies a topic exactly once with Java's clients, as copier.py does with others. An error ends it. */
public final class Copier {
  private static final Duration POLL = Duration.ofMillis(500);

  private Copier() {}

  public static void main(String[] words) throws InterruptedException {
    String bootstrap = words[0];
    String source = words[1];
    String target = words[2];
    Random chance = new Random(Long.parseLong(words[3]));
    String name = words[4];
    String atATime = words[5];
    int longestPauseMs = Integer.parseInt(words[6]);
    int aborted = Integer.parseInt(words[7]);
    Map<String, Object> common = Map.of("bootstrap.servers", bootstrap, "reconnect.backoff.max.ms", "200");
    Map<String, Object> writing = new HashMap<>(common);
    writing.putAll(Map.of("transactional.id", name, "transaction.timeout.ms", "10000"));
    Map<String, Object> reading = new HashMap<>(common);
    reading.putAll(Map.of("group.id", name, "session.timeout.ms", "1000", "heartbeat.interval.ms", "200"));
    reading.putAll(Map.of("enable.auto.commit", "false", "auto.offset.reset", "earliest"));
    reading.putAll(Map.of("isolation.level", "read_committed", "max.poll.records", atATime));
    try (KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      producer.initTransactions();
      consumer.subscribe(List.of(source));
      while (true) {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
        if (records.isEmpty()) {
          continue;
        }
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<byte[], byte[]> record : records) {
          producer.send(new ProducerRecord<>(target, record.partition(), null, record.value()));
          ends.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
        Thread.sleep(chance.nextInt(longestPauseMs + 1));
        if (chance.nextInt(aborted) > 0) {
          producer.commitTransaction();
          continue;
        }
        producer.abortTransaction();
        for (TopicPartition partition : records.partitions()) {
          consumer.seek(partition, records.records(partition).get(0).offset());
        }
      }
    }
  }
}
