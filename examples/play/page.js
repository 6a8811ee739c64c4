"use strict";
const [form] = document.forms, words = form.dataset, begin = JSON.parse(words.begin);
const {preset, cache, photo, prompt} = form.elements;
const find = id => document.getElementById(`tome-${id}`);
const [result, notice, progress] = ["result", "notice", "progress"].map(find);
let running = null;  // what aborts the last comparison

function show(event) {
  if (event.html) result.innerHTML = event.html;
  if (event.notice) notice.textContent = event.notice;
  if (event.progress) [progress.firstChild.textContent, progress.lastChild.value] = [event.progress, event.share];
  notice.classList.toggle("error", Boolean(event.is_error));
  return event.is_last;
}

async function readFields() {
  const fields = {photo: null};
  for (const {name, type, value} of form.elements) {
    if (["number", "range"].includes(type)) fields[name] = value === "" ? null : Number(value);
    else if (name && type !== "file") fields[name] = form.elements[name].value;
  }
  if (photo.files.length) fields.photo = await encode(photo.files[0]);
  return JSON.stringify(fields);
}

function encode(file) {
  const reader = new FileReader();
  reader.readAsDataURL(file);
  // Of a file that cannot be read it is "", which the program refuses.
  return new Promise(resolve => { reader.onloadend = () => resolve(reader.result?.split(",")[1] ?? ""); });
}

async function generate(signal) {
  const headers = {"Content-Type": "application/json"};
  const answer = await fetch("generate", {method: "POST", headers, body: await readFields(), signal});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "", isLast = false; !isLast;) {
    const {done, value} = await reader.read();
    if (done) throw new Error("the answer was cut off");
    const lines = (text + value).split("\n");
    text = lines.pop();
    for (const line of lines.filter(Boolean)) isLast = show(JSON.parse(line));
  }
}

form.onsubmit = async event => {
  event.preventDefault();
  running?.abort();
  const mine = running = new AbortController();
  notice.textContent = "";
  progress.hidden = false;
  show({progress: words.waiting, share: 0});
  try {
    if (photo.files[0]?.size > begin.most) show({notice: words.large, is_error: true});
    else await generate(mine.signal);
  } catch {
    if (!mine.signal.aborted) show({notice: words.offline, is_error: true});
    else if (running === mine) show({notice: words.cancelled});
  }
  if (running === mine) progress.hidden = true;
};
find("cancel").onclick = () => running?.abort();
find("drop").onclick = () => { photo.value = ""; photo.onchange(); };
photo.onchange = () => {
  photo.previousElementSibling.textContent = photo.files[0]?.name ?? "";
  find("drop").hidden = !photo.files.length;
};
for (const button of document.querySelectorAll(".example")) button.onclick = () => { prompt.value = button.textContent; };
form.oninput = ({target}) => {
  if (target.closest(".tome-pair")) target.parentNode.style.setProperty("--at", `${target.value}%`);
  else if (target.name === "preset") {
    find("own").hidden = preset.value !== "own";
    find("cache").hidden = preset.value === "given";
    cache.value = preset.value === "none" ? begin.cache : 0;
  }
  for (const range of document.querySelectorAll("[type=range][name]")) range.nextElementSibling.value = range.value;
};
for (const [name, values] of Object.entries(begin.fields)) Object.assign(form.elements[name], values);
for (const part of begin.hidden) find(part).hidden = true;
form.oninput({target: form});
