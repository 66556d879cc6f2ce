// Talking with the server: one streamed chat completion as events.

/** What went wrong, in words for people. `status` 0: the server wasn't reached. */
export class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  const sent = { "Content-Type": "application/json" };
  if (key) sent.Authorization = `Bearer ${key}`;
  return sent;
}

async function checked(response) {
  if (response.ok) return response;
  let message = `the server answered with status ${response.status}`;
  try {
    message = (await response.json()).error.message || message;
  } catch { /* no JSON: the status must do */ }
  if (response.status === 401) message = "This server wants an API key: enter it in the settings.";
  throw new Problem(message, response.status);
}

async function reach(path, options) {
  try {
    return await checked(await fetch(path, options));
  } catch (error) {
    if (error instanceof Problem || error.name === "AbortError") throw error;
    throw new Problem("The server can't be reached. Is it still running?", 0);
  }
}

/** Names of the models that the server offers. */
export async function models(key) {
  const response = await reach("/v1/models", { headers: headers(key) });
  return (await response.json()).data.map((model) => model.id);
}

/** Let the server read a prompt and write a little, so that whoever comes next finds both it and the browser awake. */
export async function warm(body, key, signal) {
  const short = { ...body, max_completion_tokens: Math.min(16, body.max_completion_tokens) };
  for await (const event of answer(short, key, signal)) void event;
}

/** The body of a request. */
export function bodyOf(settings, messages, mode) {
  const trifolium = { mode, drafts: settings.drafts, free_rows: settings.free_rows };
  if (mode === "verified") trifolium.draft_source = settings.draft_source;
  if (mode === "diffusion") {
    trifolium.policy = settings.policy;
    trifolium.threshold = settings.threshold;
  }
  if (settings.block_size) trifolium.block_size = settings.block_size;
  const body = {
    model: settings.model || "default",
    messages: settings.system ? [{ role: "system", content: settings.system }, ...messages] : messages,
    temperature: settings.temperature,
    max_completion_tokens: settings.max_tokens,
    stream: true,
    stream_options: { include_usage: true },
    trifolium,
  };
  if (settings.seed !== null) body.seed = settings.seed;
  return body;
}

/** Events of an answer: {text}, {reasoning}, {canvas: cells}, {reason}, {usage}. */
export async function* answer(body, key, signal) {
  const options = { method: "POST", headers: headers(key), body: JSON.stringify(body), signal };
  const response = await reach("/v1/chat/completions", options);
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Problem(chunk.error.message, 500);
    if (chunk.trifolium) yield { canvas: chunk.trifolium.cells };
    if (chunk.usage) yield { usage: chunk.usage };
    for (const choice of chunk.choices) {
      if (choice.delta.reasoning_content) yield { reasoning: choice.delta.reasoning_content };
      if (choice.delta.content) yield { text: choice.delta.content };
      if (choice.finish_reason) yield { reason: choice.finish_reason };
    }
  }
  throw new Problem("The connection ended before the answer did.", 0);
}

async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      const events = held.split("\n\n");
      held = events.pop();
      for (const event of events) {
        const line = event.split("\n").find((one) => one.startsWith("data: "));
        if (line) yield line.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
