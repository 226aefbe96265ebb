import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Produced;

/** Counts the words of the topic "lines" into the topic "counts", exactly once, until it is ended: BOOTSTRAP STATE-DIRECTORY. */
public final class WordCount {
  private WordCount() {}

  public static void main(String[] words) {
    Properties configs = new Properties();
    configs.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
    configs.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, words[0]);
    configs.put(StreamsConfig.STATE_DIR_CONFIG, words[1]);
    configs.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    configs.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
    configs.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    configs.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    configs.put("auto.offset.reset", "earliest");
    StreamsBuilder builder = new StreamsBuilder();
    builder
        .<String, String>stream("lines")
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word)
        .count()
        .toStream()
        .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
    KafkaStreams streams = new KafkaStreams(builder.build(), configs);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }
}
