// Copies a topic exactly once with kafkajs, as copier.py does with other clients. An error ends it.
const { Kafka, Partitioners, logLevel } = require('kafkajs')

const [bootstrap, source, target, , name, atATime, longestPauseMs, aborted] = process.argv.slice(2)
const fail = error => {
  console.error(error)
  process.exit(1)
}

const main = async () => {
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50, maxRetryTime: 200 } })
  const producer = kafka.producer({
    transactionalId: name,
    transactionTimeout: 10000,
    idempotent: true,
    maxInFlightRequests: 1,
    createPartitioner: Partitioners.DefaultPartitioner,
  })
  const consumer = kafka.consumer({
    groupId: name,
    sessionTimeout: 1000,
    heartbeatInterval: 200,
    maxWaitTimeInMs: 200,
    readUncommitted: false,
  })
  consumer.on(consumer.events.CRASH, event => fail(event.payload.error))
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [source], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
      const { topic, partition } = batch
      for (let begin = 0; begin < batch.messages.length; begin += Number(atATime)) {
        const messages = batch.messages.slice(begin, begin + Number(atATime))
        const offset = String(BigInt(messages.at(-1).offset) + 1n)
        const transaction = await producer.transaction()
        await transaction.send({ topic: target, messages: messages.map(({ value }) => ({ value, partition })) })
        await transaction.sendOffsets({ consumerGroupId: name, topics: [{ topic, partitions: [{ partition, offset }] }] })
        await new Promise(resolve => setTimeout(resolve, Math.random() * Number(longestPauseMs)))
        if (Math.random() * Number(aborted) < 1) {
          await transaction.abort()
          return consumer.seek({ topic, partition, offset: messages[0].offset })
        }
        await transaction.commit()
        resolveOffset(messages.at(-1).offset)
        await heartbeat()
      }
    },
  })
}

main().catch(fail)
