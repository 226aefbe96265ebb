import java.lang.reflect.Method;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RaftVoterEndpoint;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Every call of Java's Admin that is served, once: a line with the call's name, a tab, and its result or the name of its error.
 * The last line has all of the calls that there are. Arguments: the broker's address, a topic of two partitions with records,
 * and the broker's data directory.
 */
public final class AdminCalls {
  private AdminCalls() {}

  private interface Call {
    Object made() throws Exception;
  }

  private static void say(String name, Call call) throws Exception {
    Object found;
    try {
      found = call.made();
    } catch (ExecutionException error) {
      found = error.getCause().getClass().getSimpleName();
    }
    System.out.println(name + "\t" + String.valueOf(found).replace('\n', ' '));
  }

  public static void main(String[] words) throws Exception {
    Properties configs = new Properties();
    configs.put("bootstrap.servers", words[0]);
    try (Admin admin = Admin.create(configs)) {
      topics(admin, words[1]);
      cluster(admin, words[1], words[2]);
      groups(admin, words[0], words[1]);
      transactions(admin, words[0], words[1]);
    }
    Set<String> all = new TreeSet<>();
    for (Method method : Admin.class.getMethods()) {
      all.add(method.getName());
    }
    System.out.println("all\t" + String.join(" ", all));
  }

  private static void topics(Admin admin, String topic) throws Exception {
    String made = topic + "-made";
    TopicPartition first = new TopicPartition(topic, 0);
    ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, made);
    AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "5000000"), AlterConfigOp.OpType.SET);
    say("createTopics", () -> admin.createTopics(List.of(new NewTopic(made, 1, (short) 1))).numPartitions(made).get());
    say("createPartitions", () -> admin.createPartitions(Map.of(made, NewPartitions.increaseTo(2))).all().get());
    say("describeTopics", () -> admin.describeTopics(List.of(made)).allTopicNames().get().get(made).partitions().size());
    say("incrementalAlterConfigs", () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get());
    say(
        "describeConfigs",
        () -> admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value());
    say("listTopics", () -> admin.listTopics().names().get().contains(made));
    say("deleteTopics", () -> admin.deleteTopics(List.of(made)).all().get());
    say(
        "deleteRecords",
        () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(1))).lowWatermarks().get(first).get().lowWatermark());
    say("listOffsets", () -> admin.listOffsets(Map.of(first, OffsetSpec.earliest())).partitionResult(first).get().offset());
  }

  private static void cluster(Admin admin, String topic, String directory) throws Exception {
    TopicPartition first = new TopicPartition(topic, 0);
    TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, 1);
    say("describeCluster", () -> admin.describeCluster().nodes().get().size());
    say("describeFeatures", () -> admin.describeFeatures().featureMetadata().get().finalizedFeatures().keySet().contains("transaction.version"));
    say(
        "updateFeatures",
        () ->
            admin
                .updateFeatures(
                    Map.of("transaction.version", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.SAFE_DOWNGRADE)),
                    new UpdateFeaturesOptions().validateOnly(true))
                .all()
                .get());
    say("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo().get().leaderId());
    say("addRaftVoter", () -> admin.addRaftVoter(7, Uuid.randomUuid(), Set.of(new RaftVoterEndpoint("X", "h", 1))).all().get());
    say("removeRaftVoter", () -> admin.removeRaftVoter(7, Uuid.randomUuid()).all().get());
    say("unregisterBroker", () -> admin.unregisterBroker(7).all().get());
    say("describeLogDirs", () -> admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).containsKey(directory));
    say("describeReplicaLogDirs", () -> admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica).getCurrentReplicaLogDir().equals(directory));
    say("alterReplicaLogDirs", () -> admin.alterReplicaLogDirs(Map.of(replica, directory)).all().get());
    say("electLeaders", () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions().get().get(first).isPresent());
    say("alterPartitionReassignments", () -> admin.alterPartitionReassignments(Map.of(first, Optional.empty())).all().get());
    say("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments().get().size());
    say("listConfigResources", () -> admin.listConfigResources().all().get().stream().anyMatch(each -> each.name().equals(topic)));
    say("listClientMetricsResources", () -> admin.listClientMetricsResources().all().get().size());
  }

  private static void groups(Admin admin, String bootstrap, String topic) throws Exception {
    String group = topic + "-group";
    TopicPartition first = new TopicPartition(topic, 0);
    TopicPartition second = new TopicPartition(topic, 1);
    Map<String, Object> configs =
        Map.of("bootstrap.servers", bootstrap, ConsumerConfig.GROUP_ID_CONFIG, group, "group.instance.id", "stays", "enable.auto.commit", "false");
    try (KafkaConsumer<byte[], byte[]> member =
        new KafkaConsumer<>(configs, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      member.subscribe(List.of(topic));
      while (member.assignment().size() < 2) {
        member.poll(Duration.ofMillis(200));
      }
      member.commitSync(Map.of(first, new OffsetAndMetadata(7)));
    }
    say("describeClassicGroups", () -> admin.describeClassicGroups(List.of(group)).all().get().get(group).members().size());
    say(
        "removeMembersFromConsumerGroup",
        () -> admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get());
    say("describeConsumerGroups", () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState());
    say("listGroups", () -> admin.listGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group)));
    say("listConsumerGroups", () -> admin.listConsumerGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group)));
    say("alterConsumerGroupOffsets", () -> admin.alterConsumerGroupOffsets(group, Map.of(second, new OffsetAndMetadata(3))).all().get());
    say(
        "listConsumerGroupOffsets",
        () -> {
          Map<TopicPartition, OffsetAndMetadata> found =
              admin.listConsumerGroupOffsets(Map.of(group, new ListConsumerGroupOffsetsSpec())).partitionsToOffsetAndMetadata(group).get();
          return found.get(first).offset() + " " + found.get(second).offset();
        });
    say("deleteConsumerGroupOffsets", () -> admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get());
    say("deleteConsumerGroups", () -> admin.deleteConsumerGroups(List.of(group)).all().get());
  }

  private static void transactions(Admin admin, String bootstrap, String topic) throws Exception {
    String name = topic + "-transactional";
    TopicPartition first = new TopicPartition(topic, 0);
    Map<String, Object> configs = Map.of("bootstrap.servers", bootstrap, "transactional.id", name);
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(configs, new ByteArraySerializer(), new ByteArraySerializer())) {
      producer.initTransactions();
      producer.beginTransaction();
      producer.send(new ProducerRecord<>(topic, 0, null, new byte[1])).get();
      say("listTransactions", () -> admin.listTransactions().all().get().stream().anyMatch(each -> each.transactionalId().equals(name)));
      say("describeTransactions", () -> admin.describeTransactions(List.of(name)).description(name).get().topicPartitions());
      say("describeProducers", () -> admin.describeProducers(List.of(first)).partitionResult(first).get().activeProducers().stream().anyMatch(each -> each.currentTransactionStartOffset().isPresent()));
      say("fenceProducers", () -> admin.fenceProducers(List.of(name)).all().get());
      say("commit of the fenced producer", () -> {
        try {
          producer.commitTransaction();
          return "committed";
        } catch (org.apache.kafka.common.KafkaException error) {
          return error.getClass().getSimpleName();
        }
      });
    }
    say("forceTerminateTransaction", () -> admin.forceTerminateTransaction(name).result().get());
    say("abortTransaction", () -> admin.abortTransaction(new AbortTransactionSpec(first, 999, (short) 0, 0)).all().get());
  }
}
