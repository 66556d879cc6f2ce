// A conversation, kept in its tab.

import { answer, bodyOf } from "./api.js";
import { AnswerView, figure, make } from "./render.js";

const STORE = "trifolium.chat";

export class Chat {
  constructor(root, settings) {
    this.settings = settings;
    this.list = root.querySelector("#messages");
    this.empty = root.querySelector("#empty");
    this.prompt = root.querySelector("#prompt");
    this.send = root.querySelector("#send");
    this.stop = root.querySelector("#stop");
    this.messages = JSON.parse(sessionStorage.getItem(STORE) || "[]");
    root.querySelector("#composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.prompt.value);
    });
    this.stop.addEventListener("click", () => this.abort());
    for (const idea of root.querySelectorAll(".idea")) idea.addEventListener("click", () => this.ask(idea.textContent));
    this.draw();
  }

  get busy() {
    return Boolean(this.running);
  }

  abort() {
    this.running?.abort();
  }

  clear() {
    this.abort();
    this.messages = [];
    this.keep();
    this.draw();
    this.prompt.focus();
  }

  async ask(text) {
    if (this.busy || !text.trim()) return;
    this.messages.push({ role: "user", content: text });
    this.prompt.value = "";
    this.prompt.dispatchEvent(new Event("input"));
    this.keep();
    this.draw();
    await this.reply();
  }

  /** Answer the conversation as it stands. */
  async reply() {
    this.running = new AbortController();
    this.send.hidden = true;
    this.stop.hidden = false;
    const view = new AnswerView();
    const place = make("article", "message assistant", view.element);
    place.setAttribute("aria-label", "Answer");
    this.list.append(place);
    this.follow(true);
    const message = { role: "assistant", content: "" };
    const started = performance.now();
    let failed = null;
    try {
      const history = this.messages.map(({ role, content }) => ({ role, content }));
      const body = bodyOf(this.settings.value, history, this.settings.value.mode);
      for await (const event of answer(body, this.settings.key, this.running.signal)) {
        const near = this.near();
        if (event.text || event.reasoning) message.first ??= performance.now() - started;
        if (event.text) view.addText(event.text);
        if (event.reasoning) view.addReasoning(event.reasoning);
        if (event.canvas) view.showCanvas(event.canvas);
        if (event.usage) message.usage = event.usage;
        if (event.reason) message.reason = event.reason;
        if (near) this.follow();
      }
    } catch (error) {
      if (error.name === "AbortError") message.reason = "stopped";
      else failed = error;
    }
    message.content = view.text;
    message.reasoning = view.reasoning;
    if (view.text || view.reasoning || !failed) this.messages.push(message);
    this.running = null;
    this.send.hidden = false;
    this.stop.hidden = true;
    this.keep();
    this.draw();
    if (failed) this.tell(failed);
    this.follow(true);
    this.prompt.focus();
  }

  tell(error) {
    const retry = make("button", "", "Try again");
    retry.type = "button";
    const box = make("div", "problem", error.message, retry);
    box.setAttribute("role", "alert");
    retry.addEventListener("click", () => {
      box.remove();
      if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
      this.draw();
      this.reply();
    });
    this.list.append(box);
  }

  draw() {
    this.empty.hidden = this.messages.length > 0;
    this.list.replaceChildren(...this.messages.map((message, i) => this.drawn(message, i === this.messages.length - 1)));
  }

  drawn(message, last) {
    if (message.role === "user") return make("article", "message user", make("div", "body", message.content));
    const view = new AnswerView();
    if (message.reasoning) view.addReasoning(message.reasoning);
    view.addText(message.content);
    view.finish();
    const article = make("article", "message assistant", view.element, this.stats(message, last));
    article.setAttribute("aria-label", "Answer");
    return article;
  }

  stats(message, last) {
    const line = make("div", "stats");
    const say = (text) => line.append(make("span", "", text));
    const { usage } = message;
    if (usage) {
      const { passes, tokens_per_pass: each, seconds, mode } = usage.trifolium;
      say(mode);
      say(`${usage.completion_tokens} tokens in ${passes} passes`);
      say(`${figure(each)} a pass`);
      if (seconds) say(`${figure(usage.completion_tokens / seconds)} tok/s`);
    }
    if (message.first) say(`first after ${figure(message.first / 1000)} s`);
    if (message.reason === "length") say("cut at the longest length");
    if (message.reason === "stopped") say("stopped");
    const copy = make("button", "quiet", "Copy");
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(message.content);
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
    line.append(copy);
    if (last) {
      const again = make("button", "quiet", "Again");
      again.addEventListener("click", () => {
        if (this.busy) return;
        this.messages.pop();
        this.draw();
        this.reply();
      });
      line.append(again);
    }
    return line;
  }

  /** Whether the reader is at the end, and would like to stay there. */
  near() {
    return document.documentElement.scrollHeight - innerHeight - scrollY < 120;
  }

  follow(always = false) {
    if (always || this.near()) scrollTo(0, document.documentElement.scrollHeight);
  }

  keep() {
    sessionStorage.setItem(STORE, JSON.stringify(this.messages));
  }
}
