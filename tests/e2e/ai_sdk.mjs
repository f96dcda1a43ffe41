// Drives a daemon with the AI SDK through all of its providers that fit: text, stream, usage, tools, objects, thinking, errors.
// Prints "ok" at its end.
import assert from 'node:assert/strict'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { embedMany, generateText, isStepCount, Output, streamText, tool } from 'ai'
import { createOllama, generateText as generateWhole, streamText as streamWhole } from 'ai-sdk-ollama'
import { z } from 'zod'

const url = process.argv[2]
const ollama = createOllama({ baseURL: url })
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: 'x' })
const official = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'x' })
const openai = createOpenAICompatible({
  name: 'ftd', baseURL: `${url}/v1`, apiKey: 'x', includeUsage: true, supportsStructuredOutputs: true,
})

const asked = []
const weather = tool({
  description: 'weather of a place',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => { asked.push(city); return { city, sky: 'sunny' } },
})
const recipe = Output.object({ schema: z.object({ name: z.string(), steps: z.array(z.string()) }) })

async function suite(name, model) {
  const label = (text) => `${name}: ${text}`
  const whole = await generateText({ model, prompt: 'hi', maxOutputTokens: 50, temperature: 0 })
  assert.equal(whole.text, 'Hello, world', label('text'))
  assert.equal(whole.finishReason, 'stop', label('finish reason'))
  assert.equal(whole.usage.outputTokens, 12, label('output tokens'))
  assert.ok(whole.usage.inputTokens > 5, label('input tokens'))

  const short = await generateText({ model, prompt: 'hi', maxOutputTokens: 5 })
  assert.deepEqual([short.text, short.finishReason], ['Hello', 'length'], label('length'))
  // The Responses API has no stop sequences
  if (name !== 'openai responses') {
    const stopped = await generateText({ model, prompt: 'hi', stopSequences: [', w'] })
    assert.equal(stopped.text, 'Hello', label('stop sequence'))
  }

  const stream = streamText({ model, prompt: 'hi' })
  const parts = []
  for await (const part of stream.textStream) parts.push(part)
  assert.equal(parts.join(''), 'Hello, world', label('stream'))
  assert.ok(parts.length > 2, label('the stream comes in pieces'))
  assert.equal((await stream.usage).outputTokens, 12, label('usage of a stream'))

  for (const run of ['generate', 'stream']) {
    asked.length = 0
    const request = { model, prompt: 'How is the weather?', tools: { weather }, stopWhen: isStepCount(3) }
    const result = run === 'generate' ? await generateText(request) : streamText(request)
    const steps = await result.steps
    assert.deepEqual(asked, ['Paris', 'Bonn'], label(`${run}: both tools ran`))
    assert.equal(steps.length, 2, label(`${run}: two steps`))
    assert.equal(steps[0].finishReason, 'tool-calls', label(`${run}: finish reason`))
    assert.equal(steps[0].text.trim(), 'Looking.', label(`${run}: text beside calls`))
    assert.equal(new Set(steps[0].toolCalls.map((call) => call.toolCallId)).size, 2, label(`${run}: ids differ`))
    assert.equal(steps[1].text, 'Both are sunny.', label(`${run}: answer after the tools`))
  }

  const made = await generateText({ model, prompt: 'A recipe', output: recipe })
  assert.deepEqual(made.output, { name: 'Soup', steps: ['boil', 'eat'] }, label('object'))
  const objects = streamText({ model, prompt: 'A recipe', output: recipe })
  let last
  for await (const partial of objects.partialOutputStream) last = partial
  assert.deepEqual(last, { name: 'Soup', steps: ['boil', 'eat'] }, label('object stream'))
}

await suite('ai-sdk-ollama', ollama('tiny'))
await suite('openai-compatible', openai('tiny'))
await suite('openai chat', official.chat('tiny'))
await suite('openai responses', official.responses('tiny'))
await suite('anthropic', anthropic('tiny'))

const request = { model: ollama('tiny'), prompt: 'How is the weather?', tools: { weather } }
assert.equal((await generateWhole(request)).text.includes('Both are sunny.'), true)
let text = ''
for await (const part of (await streamWhole(request)).textStream) text += part
assert.ok(text.includes('Both are sunny.'), text)

for (const model of [ollama('thinker', { think: true }), openai('thinker')]) {
  const thought = await generateText({ model, prompt: 'ponder' })
  assert.equal(thought.reasoningText?.trim(), 'I ponder.')
  assert.equal(thought.text.trim(), 'Done.')
  const stream = streamText({ model, prompt: 'ponder' })
  assert.equal((await stream.reasoningText)?.trim(), 'I ponder.')
  assert.equal((await stream.text).trim(), 'Done.')
}

for (const model of [ollama.embedding('tiny'), openai.textEmbeddingModel('tiny')]) {
  const { embeddings, usage } = await embedMany({ model, values: ['ab', 'c'] })
  assert.deepEqual(embeddings.map((values) => values.length), [4, 4])
  assert.equal(usage.tokens, 3)
}

for (const model of [ollama('nope'), openai('nope')]) {
  await assert.rejects(generateText({ model, prompt: 'hi', maxRetries: 0 }), /'?nope'? not found/)
  let error
  const stream = streamText({ model, prompt: 'hi', maxRetries: 0, onError: (event) => { error = event.error } })
  await stream.consumeStream({ onError: () => {} })
  assert.match(String(error?.message), /nope'? not found/)
}

const controller = new AbortController()
const stream = streamText({ model: ollama('tiny'), prompt: 'hi', abortSignal: controller.signal })
controller.abort()
let ended
for await (const part of stream.fullStream) ended = part.type
assert.equal(ended, 'abort')
console.log('ok')
process.exit(0)
