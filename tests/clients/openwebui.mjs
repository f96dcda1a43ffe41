// Uses Open WebUI as a person would: pull, pick, chat, stop, upload, create, attach, eject, delete.
//   node openwebui.mjs URL FOLDER_FOR_SCREENSHOTS MODEL_TO_PULL GGUF_FILE DOCUMENT
import assert from 'node:assert/strict'
import path from 'node:path'
import { SLOW, answers, ask, close, entries, finished, menu, open, openManager, page, pick, step } from './browser.mjs'

const [pulled, gguf, documentFile] = process.argv.slice(4)

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

await close()
