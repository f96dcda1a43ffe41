// Open WebUI in headless Chromium, for the scripts beside this one: node SCRIPT URL FOLDER_FOR_SCREENSHOTS …
// Every step makes a screenshot and prints a line; the first failure ends the script.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { chromium } from 'playwright-core'

export const SLOW = { timeout: 60_000 }

const [url, screenshots] = process.argv.slice(2)
const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'chromium-'))
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM, headless: true, viewport: { width: 1280, height: 860 },
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
})
export const page = context.pages()[0] ?? await context.newPage()
page.setDefaultTimeout(20_000)
const outside = []
page.on('request', (request) => {
  if (!/^(https?|ws):\/\/127\.0\.0\.1|^data:|^blob:/.test(request.url())) outside.push(request.url())
})

let count = 0
export async function step(name, act) {
  const started = Date.now()
  try {
    await act()
  } finally {
    await page.screenshot({ path: path.join(screenshots, `${String(++count).padStart(2, '0')}-${name}.png`) })
  }
  console.log(`${name}: ${((Date.now() - started) / 1000).toFixed(1)} s`)
}

export const answers = page.locator('#messages-container')
export const menu = page.locator('#model-selector-model-button')
export const entries = page.locator('[role=option], [data-value]')

// A fresh profile is greeted
export async function open(address) {
  await page.goto(url + address, { waitUntil: 'domcontentloaded' })
  const greeting = page.getByText("Okay, Let's Go!")
  const settled = page.locator('#chat-input').or(page.getByRole('button', { name: 'Manage', exact: true }))
  await greeting.or(settled.first()).first().waitFor(SLOW)
  await greeting.waitFor({ timeout: count ? 1_500 : 15_000 }).catch(() => {})
  if (await greeting.isVisible()) await greeting.click()
  await settled.first().waitFor(SLOW)
}

export async function openManager() {
  await open('/admin/settings/connections')
  await page.getByRole('button', { name: 'Manage', exact: true }).click()
  await page.getByPlaceholder('Enter model tag (e.g. mistral:7b)').waitFor()
}

export async function pick(model) {
  await open('/')
  await menu.click()
  await entries.filter({ hasText: model }).first().click()
}

export async function ask(text) {
  await page.locator('#chat-input').click()
  await page.keyboard.type(text)
  await page.keyboard.press('Enter')
}

// A title is asked for beside the answer
export async function finished() {
  await page.getByRole('button', { name: /stop/i }).first().waitFor({ state: 'hidden', ...SLOW })
}

// Close the browser; it must have asked no other machine
export async function close() {
  await context.close()
  fs.rmSync(profile, { recursive: true, force: true })
  assert.deepEqual(outside, [], 'requests to other machines')
  console.log('ok')
}
