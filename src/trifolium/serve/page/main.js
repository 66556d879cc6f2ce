// The page: two views, settings, keys.

import { models } from "./api.js";
import { Chat } from "./chat.js";
import { Race } from "./race.js";
import { Settings, themeButton } from "./settings.js";

const find = (selector) => document.querySelector(selector);
const settings = new Settings(find("#settings"));
const chat = new Chat(find("#chat"), settings);
const race = new Race(find("#race"), settings);
const tabs = [find("#tab-chat"), find("#tab-race")];

function choose(tab, focus = false) {
  for (const one of tabs) {
    const chosen = one === tab;
    one.setAttribute("aria-selected", String(chosen));
    one.tabIndex = chosen ? 0 : -1;
    find(`#${one.getAttribute("aria-controls")}`).hidden = !chosen;
  }
  find("#new-chat").hidden = tab !== tabs[0];
  if (focus) tab.focus();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") choose(tabs[1 - tabs.indexOf(tab)], true);
  });
}

for (const box of document.querySelectorAll(".composer textarea")) {
  const fit = () => {
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight + 2}px`;
  };
  box.addEventListener("input", fit);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      box.form.requestSubmit();
    }
  });
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !find("dialog[open]")) {
    chat.abort();
    race.abort();
  }
});

find("#race-diffusion").addEventListener("change", () => race.busy || race.set());
find("#new-chat").addEventListener("click", () => chat.clear());
find("#open-settings").addEventListener("click", () => settings.open());
find("#settings").addEventListener("close", offer);
themeButton(find("#theme"));
find("#prompt").focus();
offer();

async function offer() {
  try {
    settings.offer(await models(settings.key));
  } catch {
    settings.offer([]); // the next answer says what is wrong
  }
}
