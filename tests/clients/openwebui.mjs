// Uses Open WebUI in headless Chromium as a person would: pull, pick, chat, stop, create, upload, attach, eject, delete.
//   node openwebui.mjs URL MODEL_TO_PULL GGUF_FILE DOCUMENT FOLDER_FOR_SCREENSHOTS
// Every step makes a screenshot. Prints one line a step and "ok" at the end; the first failure ends it.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { chromium } from 'playwright-core'

const [url, pulled, gguf, documentFile, screenshots] = process.argv.slice(2)
const SLOW = { timeout: 120_000 }

const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'chromium-'))
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM, headless: true, viewport: { width: 1280, height: 860 },
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
})
const page = context.pages()[0] ?? await context.newPage()
page.setDefaultTimeout(20_000)
const outside = []
page.on('request', (request) => {
  if (!/^(https?|ws):\/\/127\.0\.0\.1|^data:|^blob:/.test(request.url())) outside.push(request.url())
})

let count = 0
async function step(name, act) {
  const started = Date.now()
  try {
    await act()
  } finally {
    await page.screenshot({ path: path.join(screenshots, `${String(++count).padStart(2, '0')}-${name}.png`) })
  }
  console.log(`${name}: ${((Date.now() - started) / 1000).toFixed(1)} s`)
}

const answers = page.locator('#messages-container')
const menu = page.locator('#model-selector-model-button')
const entries = page.locator('[role=option], [data-value]')

// A fresh profile is greeted
async function open(address) {
  await page.goto(url + address, { waitUntil: 'domcontentloaded' })
  const greeting = page.getByText("Okay, Let's Go!")
  const settled = page.locator('#chat-input').or(page.getByRole('button', { name: 'Manage', exact: true }))
  await greeting.or(settled.first()).first().waitFor(SLOW)
  await greeting.waitFor({ timeout: count ? 1_500 : 15_000 }).catch(() => {})
  if (await greeting.isVisible()) await greeting.click()
  await settled.first().waitFor(SLOW)
}

async function openManager() {
  await open('/admin/settings/connections')
  await page.getByRole('button', { name: 'Manage', exact: true }).click()
  await page.getByPlaceholder('Enter model tag (e.g. mistral:7b)').waitFor()
}

async function pick(model) {
  await open('/')
  await menu.click()
  await entries.filter({ hasText: model }).first().click()
}

async function ask(text) {
  await page.locator('#chat-input').click()
  await page.keyboard.type(text)
  await page.keyboard.press('Enter')
}

// A title is asked for beside the answer
async function finished() {
  await page.getByRole('button', { name: /stop/i }).first().waitFor({ state: 'hidden', ...SLOW })
}

await step('no-models', () => open('/'))

await step('pull', async () => {
  await openManager()
  const name = page.getByPlaceholder('Enter model tag (e.g. mistral:7b)')
  await name.fill(pulled)
  await name.locator('xpath=../..').locator('button').first().click()
  await page.getByText(/has been successfully downloaded/).first().waitFor(SLOW)
})

await step('models', async () => {
  await open('/')
  await menu.click()
  await entries.filter({ hasText: pulled.replace(':latest', '') }).first().waitFor()
})

await step('chat', async () => {
  await pick(pulled.replace(':latest', ''))
  await ask('What is the capital of France?')
  await answers.getByText(/Paris/).first().waitFor(SLOW)
  await finished()
})

await step('stream', async () => {
  await ask('Tell me a long story about a cat, a dog and a mouse.')
  const lengths = new Set()
  const stop = page.getByRole('button', { name: /stop/i }).first()
  await stop.waitFor(SLOW)
  for (const started = Date.now(); lengths.size < 5 && Date.now() - started < 30_000;) {
    lengths.add((await answers.innerText()).length)
    await page.waitForTimeout(100)
  }
  assert.ok(lengths.size >= 5, `the answer grew in ${lengths.size} pieces`)
})

await step('stop', async () => {
  await page.getByRole('button', { name: /stop/i }).first().click()
  await finished()
})

await step('upload', async () => {
  await openManager()
  await page.getByRole('button', { name: 'Show', exact: true }).click()
  const file = page.locator('input[type=file][accept*=gguf]')
  await file.setInputFiles(gguf)
  await file.locator('xpath=ancestor::form').locator('button[type=submit]').click()
  const progress = page.getByText('Upload Progress')
  await progress.waitFor()
  await progress.waitFor({ state: 'hidden', ...SLOW })
})

await step('create', async () => {
  await openManager()
  await page.getByPlaceholder('Enter model tag (e.g. my-modelfile)').fill('made')
  const parameters = { temperature: 0, repeat_penalty: 1.2, num_predict: 60 }
  const made = { model: 'made', from: 'uploaded', system: 'You are helpful.', parameters }
  await page.getByPlaceholder(/my-modelfile", "from"/).fill(JSON.stringify(made))
  await page.getByRole('button', { name: 'Create Model' }).click()
  await page.getByText(/success/i).first().waitFor(SLOW)
})

await step('chat-with-created', async () => {
  await pick('made')
  await ask('What is the capital of France?')
  await answers.getByText(/Paris/).first().waitFor(SLOW)
  await finished()
})

await step('attach', async () => {
  await pick(pulled.replace(':latest', ''))
  const processed = page.waitForResponse((response) => response.url().includes('/process/status'), SLOW)
  await page.locator('input[type=file]').first().setInputFiles(documentFile)
  await (await processed).finished()
  await page.getByText(path.basename(documentFile)).first().waitFor()
})

await step('ask-document', async () => {
  await ask('What is the secret colour?')
  await page.getByText('Retrieved 1 source').first().waitFor(SLOW)
  await finished()
})

await step('eject', async () => {
  await open('/')
  await menu.click()
  await entries.filter({ hasText: pulled.replace(':latest', '') }).first().hover()
  await page.getByRole('button', { name: /eject/i }).first().click()
  await page.getByRole('button', { name: /eject/i }).first().waitFor({ state: 'hidden' })
})

await step('delete', async () => {
  await openManager()
  const models = page.locator('select[title="Select a model"]').last()
  await models.locator('option[value="made:latest"]').waitFor({ state: 'attached' })
  await models.selectOption('made:latest')
  await page.getByRole('button', { name: 'Delete Model' }).click()
  await page.getByRole('button', { name: /confirm|delete/i }).last().click()
  await page.getByText(/deleted/i).first().waitFor(SLOW)
})

await context.close()
fs.rmSync(profile, { recursive: true, force: true })
assert.deepEqual(outside, [], 'requests to other machines')
console.log('ok')
