// Asks Perfetto's trace processor about a trace: node scripts/query-trace.mjs FOLDER TRACE SQL…
//
// FOLDER has the trace processor as Perfetto's UI brings it: engine_bundle.js, trace_processor.wasm and, for newer engines,
// trace_processor_memory64.wasm. Prints a JSON array of rows for each query; what the trace processor says itself goes to standard
// error. It speaks protobuf (protos/perfetto/trace_processor/trace_processor.proto), of which the few messages needed are here.
import { webcrypto } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";

const [folder, tracePath, ...queries] = process.argv.slice(2);
if (!queries.length) {
  console.error("usage: node scripts/query-trace.mjs FOLDER TRACE SQL…");
  process.exit(2);
}

// ---- Protobuf ----

function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    if (rest < 0x80n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 0x7fn) | 0x80);
  }
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function* varints(buffer) {
  for (let at = 0; at < buffer.length; ) {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    yield BigInt.asIntN(64, value);
  }
}

// Each field of a message, by its number: numbers as BigInt, all else as bytes.
function decode(buffer) {
  const fields = new Map();
  let at = 0;
  const next = () => {
    const start = at;
    while (buffer[at++] >= 0x80);
    return varints(buffer.subarray(start, at)).next().value;
  };
  while (at < buffer.length) {
    const key = Number(next());
    const wire = key & 7;
    let value;
    if (wire === 0) value = next();
    else {
      const length = wire === 1 ? 8 : wire === 5 ? 4 : Number(next());
      value = buffer.subarray(at, at + length);
      at += length;
    }
    const field = key >> 3;
    fields.set(field, [...(fields.get(field) ?? []), value]);
  }
  return fields;
}
const all = (message, field) => message.get(field) ?? [];
const texts = (message, field) => all(message, field).map((value) => value.toString("utf8"));

// ---- The trace processor, which believes that it is in a browser's worker ----

class XMLHttpRequest {
  open(_, url) {
    this.url = url;
  }
  send() {
    this.response = new Uint8Array(readFileSync(join(folder, basename(this.url))));
  }
}
const worker = { location: { href: "https://localhost/" } };
const source = readFileSync(join(folder, "engine_bundle.js"), "utf8");
// Standard output belongs to rows.
const quiet = { ...console, log: console.error, warn: console.error };
new Function("self", "process", "WorkerGlobalScope", "XMLHttpRequest", "console", "crypto", source)(
  worker,
  undefined,
  Object,
  XMLHttpRequest,
  quiet,
  webcrypto,
);
let replies = [];
const port = { postMessage: (reply) => replies.push(Buffer.from(reply)) };
worker.onmessage({ data: port });
await new Promise((begun) => setTimeout(begun, 0));

let sequence = 0;
// A request, and the messages of its reply.
function call(method, ...fields) {
  replies = [];
  const message = Buffer.concat([number(1, ++sequence), number(2, method), ...fields]);
  port.onmessage({ data: new Uint8Array(bytes(1, message)) });
  return decode(Buffer.concat(replies)).get(1)?.map(decode) ?? [];
}

function query(sql) {
  let columns = [];
  const cells = [];
  for (const reply of call(3, bytes(103, bytes(1, Buffer.from(sql))))) {
    for (const result of all(reply, 203).map(decode)) {
      const [error] = texts(result, 2);
      if (error) throw new Error(`${sql}: ${error}`);
      if (result.has(1)) columns = texts(result, 1);
      for (const batch of all(result, 3).map(decode)) {
        const integers = all(batch, 2).flatMap((packed) => [...varints(packed)]);
        const floats = all(batch, 3).flatMap((packed) =>
          Array.from({ length: packed.length / 8 }, (_, at) => packed.readDoubleLE(8 * at)),
        );
        const strings = texts(batch, 5).join("").split("\0");
        for (const type of all(batch, 1).flatMap((packed) => [...packed])) {
          // null, integer, float, string
          cells.push([undefined, () => null, () => Number(integers.shift()), () => floats.shift(), () => strings.shift()][type]());
        }
      }
    }
  }
  const rows = [];
  while (cells.length) rows.push(Object.fromEntries(columns.map((column) => [column, cells.shift()])));
  return rows;
}

for (const reply of call(1, bytes(101, readFileSync(tracePath)))) {
  for (const error of all(reply, 201).flatMap((result) => texts(decode(result), 2))) throw new Error(error);
}
call(2);
for (const sql of queries) console.log(JSON.stringify(query(sql)));
