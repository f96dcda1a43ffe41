// Chats with Open WebUI as it comes, which offers tools with every message, to models that are scripted:
// one that calls a tool, one that thinks, one that takes no tools.   node openwebui_tools.mjs URL FOLDER_FOR_SCREENSHOTS
import { SLOW, answers, ask, close, finished, page, pick, step } from './browser.mjs'

await step('tool', async () => {
  await pick('tooly')
  await ask('What time is it?')
  await answers.getByText('It is late, says the clock.').first().waitFor(SLOW)
  await page.getByText('Telling the time').first().waitFor(SLOW)
  await finished()
})

await step('follow-up', async () => {
  await ask('And now?')
  await answers.getByText('It is still late.').first().waitFor(SLOW)
  await finished()
})

await step('thinking', async () => {
  await pick('thinker')
  await ask('Ponder this.')
  await answers.getByText('Done with it.').first().waitFor(SLOW)
  await answers.getByText(/Thought/).first().waitFor(SLOW)
  await finished()
})

await step('no-tools', async () => {
  await pick('plain')
  await ask('Hello?')
  await answers.getByText(/does not support tools/).first().waitFor(SLOW)
})

await close()
