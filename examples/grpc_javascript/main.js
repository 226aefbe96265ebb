// Sends records to a tidelog node over gRPC and reads a topic, with nothing but the .proto files.
//
//     node main.js PROTOS ADDRESS TOPIC VALUE...
//
// PROTOS is the directory that holds grpc_api/proto. Each VALUE is sent with the key "javascript" and a header. Then every
// record of the topic is printed as a line of JSON.
'use strict';

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [protos, address, topic, ...values] = process.argv.slice(2);
if (!topic) {
  console.error('usage: node main.js PROTOS ADDRESS TOPIC VALUE...');
  process.exit(2);
}

const definition = loader.loadSync('grpc_api/proto/records.proto', {
  includeDirs: [protos], keepCase: true, longs: Number, enums: String, defaults: false,
});
const { Records } = grpc.loadPackageDefinition(definition).tidelog.v1;
const records = new Records(address, grpc.credentials.createInsecure());

function send() {
  const request = {
    topic,
    records: values.map((value) => ({
      key: Buffer.from('javascript'),
      value: Buffer.from(value),
      headers: [{ name: 'language', value: Buffer.from('JavaScript') }],
    })),
  };
  return new Promise((resolve, reject) => {
    records.Send(request, (error, answer) => {
      const failed = (answer?.records ?? []).find((each) => each.error);
      if (error) reject(error);
      else if (failed) reject(new Error(failed.error.message));
      else resolve();
    });
  });
}

const text = (data) => (data === undefined ? null : data.toString());

async function read() {
  for await (const response of records.Read({ topic, until_end: true })) {
    for (const record of response.records) {
      console.log(JSON.stringify({
        partition: record.partition ?? 0,
        offset: record.offset ?? 0,
        timestamp_ms: record.timestamp_ms ?? 0,
        key: text(record.key),
        value: text(record.value),
        headers: Object.fromEntries((record.headers ?? []).map((each) => [each.name, text(each.value) ?? ''])),
      }));
    }
  }
}

send().then(read).then(
  () => records.close(),
  (error) => { console.error(error.message); process.exitCode = 1; records.close(); },
);
