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

// Members of groups kept between questions, by name: what they were assigned, and what they have read.
const kept = {}

// A condition that is checked again after each event of a member.
const once = (member, condition) =>
  new Promise((resolve, reject) => {
    const check = () => member.failure ? reject(member.failure) : condition() && resolve()
    member.waiting.push(check)
    check()
  })

const assigned = member =>
  Object.entries(member.assignment).flatMap(([topic, numbers]) => numbers.map(number => `${topic}-${number}`)).sort()

const transactional = question =>
  client(question).producer({
    transactionalId: question.id,
    idempotent: true,
    maxInFlightRequests: 1,
    createPartitioner: Partitioners.DefaultPartitioner,
  })

const commands = {
  // A member of a group that commits only when it is told to. `topic` may be /a pattern/.
  open: async question => {
    const consumer = client(question).consumer({
      groupId: question.group,
      heartbeatInterval: 300,
      sessionTimeout: question.session ?? 10000,
      maxWaitTimeInMs: 100,
    })
    const member = { consumer, assignment: {}, found: [], waiting: [], failure: null }
    const happened = () => member.waiting.forEach(check => check())
    consumer.on(consumer.events.GROUP_JOIN, event => {
      member.assignment = event.payload.memberAssignment
      happened()
    })
    consumer.on(consumer.events.CRASH, event => {
      if (event.payload.restart) return
      member.failure = event.payload.error
      happened()
    })
    await consumer.connect()
    const pattern = /^\/(.*)\/$/.exec(question.topic)
    await consumer.subscribe({ topics: [pattern ? new RegExp(pattern[1]) : question.topic], fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        member.found.push([topic, partition, Number(message.offset)])
        happened()
      },
    })
    kept[question.name] = member
    return null
  },
  share: async question => {
    const member = kept[question.name]
    await once(member, () => assigned(member).length === question.each)
    return assigned(member)
  },
  // At least `count` records of those read since the last question.
  read: async question => {
    const member = kept[question.name]
    await once(member, () => member.found.length >= question.count)
    return member.found.splice(0)
  },
  commit: async question => {
    const place = ([partition, offset]) => ({ topic: question.topic, partition: Number(partition), offset: String(offset) })
    await kept[question.name].consumer.commitOffsets(Object.entries(question.offsets).map(place))
    return null
  },
  seek: async question => {
    kept[question.name].consumer.seek({ topic: question.topic, partition: question.partition, offset: String(question.offset) })
    return null
  },
  pause: async question => {
    kept[question.name].consumer.pause([{ topic: question.topic, partitions: [question.partition] }])
    return null
  },
  resume: async question => {
    kept[question.name].consumer.resume([{ topic: question.topic, partitions: [question.partition] }])
    return null
  },
  close: async question => {
    await kept[question.name].consumer.disconnect()
    delete kept[question.name]
    return null
  },
  // Transactions of one producer, one value each; "aborts" names those that are aborted.
  transact: async question => {
    const producer = transactional(question)
    await producer.connect()
    try {
      for (const value of question.values) {
        const transaction = await producer.transaction()
        await transaction.send({ topic: question.topic, messages: [{ value, partition: 0 }] })
        await (question.aborts.includes(value) ? transaction.abort() : transaction.commit())
      }
    } finally {
      await producer.disconnect()
    }
    return null
  },
  // Copies `count` records in transactions that carry the offsets of the group; the first one is aborted.
  copy: async question => {
    const consumer = client(question).consumer({ groupId: question.group, maxWaitTimeInMs: 100, readUncommitted: false })
    const producer = transactional(question)
    await Promise.all([consumer.connect(), producer.connect()])
    await consumer.subscribe({ topics: [question.source], fromBeginning: true })
    let [copied, aborted] = [0, false]
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
      consumer.run({
        autoCommit: false,
        eachBatchAutoResolve: false,
        eachBatch: async ({ batch, resolveOffset }) => {
          const { topic, partition } = batch
          const messages = batch.messages.map(({ value }) => ({ value, partition }))
          const offset = String(BigInt(batch.lastOffset()) + 1n)
          const offsets = { consumerGroupId: question.group, topics: [{ topic, partitions: [{ partition, offset }] }] }
          const transaction = await producer.transaction()
          await transaction.send({ topic: question.topic, messages })
          await transaction.sendOffsets(offsets)
          if (!aborted) {
            aborted = true
            await transaction.abort()
            return consumer.seek({ topic, partition, offset: batch.firstOffset() })
          }
          await transaction.commit()
          resolveOffset(batch.lastOffset())
          copied += messages.length
          if (copied >= question.count) resolve()
        },
      }).catch(reject)
    })
    await Promise.all([consumer.disconnect(), producer.disconnect()])
    return copied
  },
  // The name of the error of a producer whose id another took over within a transaction.
  fence: async question => {
    const old = transactional(question)
    const young = transactional(question)
    await Promise.all([old.connect(), young.connect()])
    try {
      const stale = await old.transaction()
      await stale.send({ topic: question.topic, messages: [{ value: 'of the old one', partition: 0 }] })
      const newer = await young.transaction()
      await newer.send({ topic: question.topic, messages: [{ value: 'of the new one', partition: 0 }] })
      const refused = await stale.commit().then(() => null, error => error.type)
      await newer.commit()
      return refused
    } finally {
      await Promise.all([old.disconnect(), young.disconnect()])
    }
  },
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
    const consumer = client(question).consumer({ groupId: question.group, heartbeatInterval: 300, maxWaitTimeInMs: 100 })
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
      const consumer = client(question).consumer({ groupId: question.group, heartbeatInterval: 300, maxWaitTimeInMs: 100 })
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
  // The names of the methods of its admin client.
  adminCalls: async question => {
    const admin = client(question).admin()
    return Object.keys(admin).filter(name => typeof admin[name] === 'function')
  },
  // Any method of its admin client.
  admin: async question => {
    const admin = client(question).admin()
    await admin.connect()
    try {
      const [before, ...asked] = question.after ?? []
      if (before) await admin[before](...asked)
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
