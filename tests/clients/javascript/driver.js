// kafkajs, asked in lines of JSON (tests/support/talker.py). Bytes travel as base64, null as null.
const readline = require('readline')
const { Kafka, CompressionTypes, CompressionCodecs, Partitioners, logLevel } = require('kafkajs')

// kafkajs brings gzip; these are what its documentation tells users to add.
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => lz4.compressFrame(encoder.buffer),
  decompress: async buffer => lz4.decompressFrame(buffer),
})
const zstd = require('@bokuweb/zstd-wasm')
const zstdReady = zstd.init()
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => zstdReady.then(() => Buffer.from(zstd.compress(encoder.buffer, 3))),
  decompress: async buffer => zstdReady.then(() => Buffer.from(zstd.decompress(buffer))),
})
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const bytes = text => (text === null ? null : Buffer.from(text, 'base64'))

const message = record => {
  const headers = {}
  for (const [name, value] of record.headers) {
    headers[name] = name in headers ? [].concat(headers[name], [bytes(value)]) : bytes(value)
  }
  return { key: bytes(record.key), value: bytes(record.value), headers, timestamp: String(record.timestamp), partition: 0 }
}

const client = question => new Kafka({ brokers: [question.bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 3 } })

const commands = {
  produce: async question => {
    const producer = client(question).producer({
      idempotent: question.idempotent ?? false,
      createPartitioner: Partitioners.DefaultPartitioner,
    })
    await producer.connect()
    try {
      const messages = question.records.map(message)
      return await producer.send({ topic: question.topic, acks: -1, compression: CODECS[question.codec], messages })
    } finally {
      await producer.disconnect()
    }
  },
  // Reads `count` values as a member of a group, and commits.
  group: async question => {
    const consumer = client(question).consumer({ groupId: question.group, heartbeatInterval: 300 })
    await consumer.connect()
    try {
      await consumer.subscribe({ topics: [question.topic], fromBeginning: true })
      const found = []
      await new Promise((resolve, reject) => {
        consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
        consumer.run({
          eachMessage: async ({ message }) => {
            found.push(message.value.toString('base64'))
            if (found.length >= question.count) resolve()
          },
        }).catch(reject)
      })
      return found
    } finally {
      await consumer.disconnect()
    }
  },
  // Two members of a group: their partitions once both have some, and those of the first once the second has left.
  members: async question => {
    const own = [[], []]
    const seen = []
    const until = condition => new Promise(resolve => (condition() ? resolve() : seen.push([condition, resolve])))
    const start = async number => {
      const consumer = client(question).consumer({ groupId: question.group, heartbeatInterval: 300 })
      consumer.on(consumer.events.GROUP_JOIN, event => {
        own[number] = event.payload.memberAssignment[question.topic] ?? []
        seen.filter(([condition]) => condition()).forEach(([, resolve]) => resolve())
      })
      await consumer.connect()
      await consumer.subscribe({ topics: [question.topic], fromBeginning: true })
      await consumer.run({ eachMessage: async () => {} })
      return consumer
    }
    const count = question.partitions
    const first = await start(0)
    await until(() => own[0].length === count)
    const second = await start(1)
    await until(() => own[0].length + own[1].length === count && own[1].length > 0)
    const shared = own.map(each => [...each])
    await second.disconnect()
    await until(() => own[0].length === count)
    await first.disconnect()
    return { shared, left: own[0] }
  },
  // Any method of its admin client.
  admin: async question => {
    const admin = client(question).admin()
    await admin.connect()
    try {
      return (await admin[question.method](...(question.arguments ?? []))) ?? null
    } finally {
      await admin.disconnect()
    }
  },
}

;(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const question = JSON.parse(line)
    let answer
    try {
      answer = { result: await commands[question.command](question) }
    } catch (error) {
      answer = { error: `${error.name}: ${error.type ?? ''} ${error.message}` }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
})()
