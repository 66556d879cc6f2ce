// Text and canvas as elements. Everything a model or a person writes becomes text nodes, never markup.

/** An element with a class and children; strings become text. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** An answer that grows: final text, and behind it the canvas, which people who listen don't hear. */
export class AnswerView {
  constructor() {
    this.text = "";
    this.reasoning = "";
    this.final = make("span");
    this.canvas = make("span", "canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.body = make("div", "answer streaming", this.final, this.canvas);
    this.element = make("div", "", this.body);
  }

  addText(text) {
    this.text += text;
    this.final.append(text);
    this.canvas.replaceChildren();
  }

  addReasoning(text) {
    if (!this.thought) {
      this.thought = make("div", "thought");
      this.details = make("details", "thoughts", make("summary", "", "Thinking"), this.thought);
      this.element.prepend(this.details);
    }
    this.reasoning += text;
    this.thought.append(text);
  }

  showCanvas(cells) {
    this.canvas.replaceChildren(...cells.flatMap(cellsOf));
  }

  /** The answer is over: no canvas any more, and its structure shows. */
  finish() {
    this.canvas.remove();
    this.body.classList.remove("streaming");
    this.body.replaceChildren(...formatted(this.text));
    if (this.details) this.details.firstChild.textContent = "Thoughts";
  }
}

/** A cell, with the space before its word outside: a line that breaks there would end in an empty cell. */
function cellsOf(cell) {
  const text = cell.state === "masked" ? "" : cell.text;
  const space = text.trim() ? text.slice(0, text.length - text.trimStart().length) : "";
  const element = make("i", `cell ${cell.state}`, text.slice(space.length));
  if (cell.state === "proposed") element.style.setProperty("--sure", cell.confidence.toFixed(2));
  return [space, element];
}

/** A little Markdown: fences, headings, lists, bold and code; everything else as it stands. */
export function formatted(text) {
  const out = [];
  const parts = text.split(/^```[^\n]*\n?/m);
  parts.forEach((part, i) => {
    if (i % 2) out.push(make("pre", "", make("code", "", part.replace(/\n$/, ""))));
    else for (const block of part.split(/\n{2,}/)) if (block.trim()) out.push(...blocksOf(block.replace(/^\n+|\n+$/g, "")));
  });
  return out;
}

function blocksOf(block) {
  const out = [];
  let list = null;
  let lines = [];
  const flush = () => {
    if (lines.length) {
      const paragraph = make("p");
      lines.forEach((line, i) => paragraph.append(...(i ? [make("br")] : []), ...inline(line)));
      out.push(paragraph);
      lines = [];
    }
  };
  for (const line of block.split("\n")) {
    const item = line.match(/^\s*(?:([-*•])|(\d+)[.)])\s+(.*)$/);
    const heading = line.match(/^#{1,6}\s+(.*)$/);
    if (item) {
      flush();
      const tag = item[1] ? "UL" : "OL";
      if (!list || list.tagName !== tag) {
        list = make(tag.toLowerCase());
        if (item[2]) list.start = Number(item[2]);
        out.push(list);
      }
      list.append(make("li", "", ...inline(item[3])));
      continue;
    }
    list = null;
    if (heading) {
      flush();
      out.push(make("h3", "", ...inline(heading[1])));
    } else lines.push(line);
  }
  flush();
  return out;
}

function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (/^`[^`]+`$/.test(part)) return make("code", "", part.slice(1, -1));
    if (/^\*\*[^*]+\*\*$/.test(part)) return make("b", "", part.slice(2, -2));
    return part;
  });
}

/** A number for people: 1,234 or 12.3 or 0.12; counts without a fraction. */
export function figure(value) {
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1) : value.toFixed(2).replace(/\.?0+$/, "") || "0";
}
