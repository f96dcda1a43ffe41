// Drives a daemon with the ollama package: chat, stream, abort, list, show, embed, pull, push, errors. Prints "ok".
import assert from 'node:assert/strict'
import { Ollama } from 'ollama'

const client = new Ollama({ host: process.argv[2] })
const messages = [{ role: 'user', content: 'hi' }]

const answer = await client.chat({ model: 'tiny', messages })
assert.equal(answer.message.content, 'Hello, world')
assert.equal(answer.done_reason, 'stop')

let text = ''
let last
for await (const part of await client.chat({ model: 'tiny', messages, stream: true })) {
  text += part.message.content
  last = part
}
assert.equal(text, 'Hello, world')
assert.equal(last.done, true)

text = ''
for await (const part of await client.generate({ model: 'tiny', prompt: 'x', stream: true })) text += part.response
assert.equal(text, 'Hello, world')

assert.deepEqual((await client.list()).models.map((model) => model.name), ['tiny:latest'])
assert.equal((await client.show({ model: 'tiny' })).model_info['general.architecture'], 'llama')
assert.equal((await client.embed({ model: 'tiny', input: ['ab', 'c'] })).embeddings.length, 2)
assert.equal((await client.ps()).models.length, 1)
assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/)

assert.equal((await client.copy({ source: 'tiny', destination: 'mine' })).status, 'success')
assert.equal((await client.create({ model: 'made', from: 'tiny', system: 's', stream: false })).status, 'success')
for (const model of ['mine', 'made']) assert.equal((await client.delete({ model })).status, 'success')

const remote = `${process.argv[3]}/library/remote`
const statuses = []
for await (const part of await client.pull({ model: remote, insecure: true, stream: true })) statuses.push(part.status)
assert.equal(statuses[0], 'pulling manifest')
assert.equal(statuses.at(-1), 'success')
assert.equal((await client.chat({ model: remote, messages })).message.content, 'Hello, world')
await client.copy({ source: 'tiny', destination: `${process.argv[3]}/library/sent` })
assert.equal((await client.push({ model: `${process.argv[3]}/library/sent`, insecure: true })).status, 'success')

await assert.rejects(client.chat({ model: 'nope', messages }), /model 'nope' not found/)
await assert.rejects(client.pull({ model: 'bad name', stream: false }), /invalid model name/)

const stream = await client.chat({ model: 'tiny', messages, stream: true })
stream.abort()
await assert.rejects(async () => { for await (const _ of stream); }, { name: 'AbortError' })
console.log('ok')
process.exit(0)
