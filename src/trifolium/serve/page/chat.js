// A conversation, kept in its tab.

import { answer, bodyOf } from "./api.js";
import { AnswerView, figure, make } from "./render.js";

const STORE = "trifolium.chat";

function stored() {
  try {
    const messages = JSON.parse(sessionStorage.getItem(STORE) || "[]");
    return Array.isArray(messages) ? messages.filter((one) => typeof one?.content === "string") : [];
  } catch {
    return [];
  }
}

export class Chat {
  constructor(root, settings) {
    this.settings = settings;
    this.list = root.querySelector("#messages");
    this.empty = root.querySelector("#empty");
    this.prompt = root.querySelector("#prompt");
    this.send = root.querySelector("#send");
    this.stop = root.querySelector("#stop");
    this.note = root.querySelector("#revising");
    this.messages = stored();
    root.querySelector("#composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.prompt.value);
    });
    this.stop.addEventListener("click", () => this.abort());
    for (const idea of root.querySelectorAll(".idea")) idea.addEventListener("click", () => this.ask(idea.textContent));
    addEventListener("pagehide", () => this.partial && this.keep());
    this.draw();
    // A reload came before the first word: the question still wants its answer.
    if (this.messages.at(-1)?.role === "user") this.tell(new Error("This has no answer yet."), "Answer");
  }

  get busy() {
    return Boolean(this.running);
  }

  /** Stop what is being written, or leave an earlier message as it was. */
  abort() {
    this.running?.abort();
    if (this.revised) this.revise(null);
  }

  clear() {
    this.abort();
    this.settle(); // what the old answer still brings belongs to nobody
    this.messages = [];
    this.keep();
    this.draw();
    this.prompt.focus();
  }

  /** Put an earlier message back into the box: what is sent next takes its place, and what followed it goes. */
  revise(message) {
    if (this.busy) return;
    this.revised = message;
    const from = message ? this.messages.indexOf(message) : Infinity;
    [...this.list.children].forEach((one, i) => one.classList.toggle("going", i >= from));
    this.note.textContent = message ? "Sending replaces this message and what followed it. Esc keeps them." : "";
    this.prompt.value = message ? message.content : "";
    this.prompt.dispatchEvent(new Event("input"));
    this.prompt.focus();
  }

  async ask(text) {
    if (this.busy || !text.trim()) return;
    if (this.revised) {
      const from = this.messages.indexOf(this.revised);
      this.messages.length = from;
      for (const one of [...this.list.children].slice(from)) one.remove();
      this.revise(null);
    }
    const message = { role: "user", content: text };
    this.messages.push(message);
    this.prompt.value = "";
    this.prompt.dispatchEvent(new Event("input"));
    this.keep();
    // Only what is new is added: whoever listens would hear the whole conversation again.
    this.empty.hidden = true;
    for (const old of this.list.querySelectorAll(".again, .problem")) old.remove();
    this.list.append(this.drawn(message, true));
    await this.reply();
  }

  /** Answer the conversation as it stands. */
  async reply() {
    const running = new AbortController();
    this.running = running;
    this.send.hidden = true;
    this.stop.hidden = false;
    const view = new AnswerView();
    const place = make("article", "message assistant", view.element);
    place.setAttribute("aria-label", "Answer");
    this.list.append(place);
    this.follow(true);
    const message = { role: "assistant", content: "" };
    this.partial = () => ({ ...message, content: view.text, reasoning: view.reasoning, reason: "broken" });
    const started = performance.now();
    let failed = null;
    try {
      const history = this.messages.map(({ role, content }) => ({ role, content }));
      const body = bodyOf(this.settings.value, history, this.settings.value.mode);
      for await (const event of answer(body, this.settings.key, running.signal)) {
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
      else [failed, message.reason] = [error, "broken"];
    }
    if (this.running !== running) return; // another chat was begun meanwhile
    message.content = view.text;
    message.reasoning = view.reasoning;
    const kept = view.text || view.reasoning || !failed;
    if (kept) this.messages.push(message);
    this.settle();
    this.keep();
    place.setAttribute("aria-live", "off"); // its words were heard; now they only get their form
    if (kept) {
      view.finish();
      place.append(this.stats(message, true));
    } else place.remove();
    if (failed) this.tell(failed);
    this.follow(true);
    this.prompt.focus();
  }

  /** No answer is being written any more. */
  settle() {
    this.running = this.partial = null;
    this.send.hidden = false;
    this.stop.hidden = true;
  }

  tell(error, label = "Try again") {
    const retry = make("button", "", label);
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
    if (message.role === "user") {
      const edit = make("button", "quiet edit", "Edit");
      edit.addEventListener("click", () => this.revise(message));
      return make("article", "message user", edit, make("div", "body", message.content));
    }
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
    if (message.reason === "broken") say("broken off");
    const copy = make("button", "quiet", "Copy");
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(message.content); // only there over https and on this machine
        copy.textContent = "Copied";
      } catch {
        copy.textContent = "The browser forbids it";
      }
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
    line.append(copy);
    if (last) {
      const again = make("button", "quiet again", "Again");
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

  /** Into the tab's store, with as much of an answer as has come. */
  keep() {
    const partial = this.partial?.();
    const begun = partial && (partial.content || partial.reasoning);
    sessionStorage.setItem(STORE, JSON.stringify(begun ? [...this.messages, partial] : this.messages));
  }
}
