import { loadPyodide } from "./pyodide.mjs";

const at = id => document.getElementById(id);
const bytesOf = async name => {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  return answer.arrayBuffer();
};

async function start() {
  const python = await loadPyodide({ indexURL: new URL(".", document.baseURI).href });
  const place = { extractDir: "/lib/python3.14/site-packages" };
  for (const name of ["packages.zip", "msgspec.zip"]) python.unpackArchive(await bytesOf(name), "zip", place);
  return python;
}

const began = performance.now();
const ready = start();
ready.then(
  () => { at("state").textContent = `Ready: loaded in ${((performance.now() - began) / 1000).toFixed(1)} s.`; },
  error => { at("state").textContent = `Python could not be loaded: ${error.message}. The page has to come from a web server, not from disk.`; },
);

let turn = 0;
async function judge(files) {
  at("answer").hidden = true;
  const python = await ready;
  at("state").textContent = `${files.length} ${files.length === 1 ? "file is" : "files are"} being judged …`;
  await new Promise(shown => setTimeout(shown, 50));
  const folder = `/drop-${++turn}`, asked = performance.now();
  python.FS.mkdir(folder);
  const names = new Set();
  for (const file of files) {
    let name = file.name.replaceAll("/", "_");
    while (names.has(name)) name = `${names.size}-${name}`;
    names.add(name);
    const bytes = await file.arrayBuffer().catch(() => { throw new Error(`${file.name} cannot be read. Of a folder drop the files, or a tar or zip of it.`); });
    python.FS.writeFile(`${folder}/${name}`, new Uint8Array(bytes));
  }
  python.globals.set("folder", folder);
  const answer = JSON.parse(python.runPython("from pathlib import Path\nfrom judge import judge\njudge(Path(folder))"));
  at("state").textContent = `Judged in ${((performance.now() - asked) / 1000).toFixed(1)} s. Nothing has left this page.`;
  at("command").textContent = answer.command || "Nothing here is understood";
  at("text").textContent = answer.text;
  for (const id of ["report", "save"]) at(id).hidden = !answer.html;
  if (answer.html) {
    at("report").srcdoc = answer.html;
    at("save").href = URL.createObjectURL(new Blob([answer.html], { type: "text/html" }));
  }
  at("answer").hidden = false;
}

const asked = files => files.length && judge([...files]).catch(error => { at("state").textContent = `It went wrong: ${error.message}`; });
at("files").addEventListener("change", event => asked(event.target.files));
const zone = at("zone");
for (const name of ["dragenter", "dragover"]) zone.addEventListener(name, event => { event.preventDefault(); zone.classList.add("over"); });
zone.addEventListener("dragleave", () => zone.classList.remove("over"));
zone.addEventListener("drop", event => { event.preventDefault(); zone.classList.remove("over"); asked(event.dataTransfer.files); });
