// Changes in a folder: upload, new folder, rename, delete. Looking, searching and downloading need none of this.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  for (const time of document.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    const two = (number) => String(number).padStart(2, "0");
    if (!isNaN(at)) {
      time.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
    }
  }
  const form = $("files");
  if (!form) return;
  document.body.classList.add("scripted");
  const { token, carried, change } = form.dataset;
  const mayChange = change === "true";
  const boxes = [...form.querySelectorAll("tbody input[type=checkbox]")];
  const chosen = () => boxes.filter((box) => box.checked);
  const here = location.pathname;
  const address = (name) => here + name + carried;
  const nameOf = (box) => box.closest("tr").querySelector("bdi").textContent;

  // ---- choosing -----------------------------------------------------------------------------------------------------
  const show = () => {
    const count = chosen().length;
    form.querySelector(".chosen").classList.toggle("some", count > 0);
    $("count").textContent = count ? `${count} chosen` : "";
    const rename = form.querySelector("[data-act=rename]");
    if (rename) rename.disabled = count !== 1;
    const all = $("all");
    if (all) {
      all.checked = count > 0 && count === boxes.length;
      all.indeterminate = count > 0 && count < boxes.length;
    }
  };
  let last = null;
  form.addEventListener("click", (event) => {
    const at = boxes.indexOf(event.target);
    if (at < 0) return;
    if (event.shiftKey && last !== null) {
      const [from, to] = [Math.min(at, last), Math.max(at, last)];
      boxes.slice(from, to + 1).forEach((box) => (box.checked = event.target.checked));
    }
    last = at;
    show();
  });
  if ($("all")) {
    $("all").hidden = false;
    $("all").addEventListener("change", (event) => {
      boxes.forEach((box) => (box.checked = event.target.checked));
      show();
    });
  }
  show();

  // ---- the keyboard ---------------------------------------------------------------------------------------------------
  const links = [...form.querySelectorAll("tbody th a")];
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input:not([type=checkbox]), textarea, select, dialog *");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = event.target.closest?.("tbody tr");
    const at = row ? links.findIndex((link) => row.contains(link)) : -1;
    const act = {
      ArrowDown: () => links[Math.min(at + 1, links.length - 1)]?.focus(),
      ArrowUp: () => links[Math.max(at - 1, 0)]?.focus(),
      "/": () => document.querySelector(".search input").focus(),
      x: () => row?.querySelector("input").click(),
      Delete: () => mayChange && chosen().length && remove(),
      F2: () => mayChange && chosen().length === 1 && rename(),
    }[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });

  if (!mayChange) return;
  for (const button of document.querySelectorAll("[data-act]")) button.hidden = false;

  // ---- requests -------------------------------------------------------------------------------------------------------
  const headers = (more = {}) => (token ? { "X-Renkei-Token": token, ...more } : more);
  const why = (status, text) => {
    try {
      const problem = JSON.parse(text);
      return `${problem.detail}. ${problem.remedy}`;
    } catch {
      return status ? `The PoP refused it (${status}).` : "The PoP does not answer.";
    }
  };
  const send = async (method, url, more) => {
    const answer = await fetch(url, { method, headers: headers(more) });
    if (!answer.ok) throw Object.assign(new Error(why(answer.status, await answer.text())), { status: answer.status });
  };

  // ---- questions ------------------------------------------------------------------------------------------------------
  const ask = (title, text, yes, name) =>
    new Promise((resolve) => {
      const dialog = $("ask");
      $("ask-title").textContent = title;
      $("ask-text").textContent = text;
      $("ask-yes").textContent = yes;
      const input = $("ask-name");
      input.hidden = name === undefined;
      input.value = name ?? "";
      dialog.returnValue = "";
      dialog.onclose = () => resolve(dialog.returnValue === "yes" ? input.value || true : null);
      dialog.showModal();
      if (name === undefined) return $("ask-yes").focus();
      input.focus();
      input.setSelectionRange(0, name.lastIndexOf(".") > 0 ? name.lastIndexOf(".") : name.length);
    });
  const tell = (error) => ask("That was not done", error.message, "OK");
  const isName = (name) => typeof name === "string" && name !== "." && name !== ".." && !/[/\0]/.test(name);

  const make = async () => {
    const name = await ask("New folder", "", "Make it", "");
    if (!isName(name)) return;
    try {
      await send("MKCOL", address(encodeURIComponent(name) + "/"));
      location.reload();
    } catch (error) {
      tell(error.status === 405 ? new Error("There is something of that name already.") : error);
    }
  };
  const rename = async () => {
    const [box] = chosen();
    const name = await ask("Rename", "", "Rename", nameOf(box));
    if (!isName(name) || name === nameOf(box)) return;
    const to = location.origin + here + encodeURIComponent(name);
    try {
      await send("MOVE", address(box.value), { Destination: to, Overwrite: "F" });
      location.reload();
    } catch (error) {
      tell(error.status === 412 ? new Error("There is something of that name already.") : error);
    }
  };
  const remove = async () => {
    const all = chosen();
    const names = all.slice(0, 5).map(nameOf).join(", ") + (all.length > 5 ? ", ..." : "");
    const what = all.length === 1 ? "this" : `these ${all.length}`;
    if (!(await ask(`Delete ${what}?`, `${names}. Folders go with all that is in them. This cannot be undone.`, "Delete"))) return;
    try {
      for (const box of all) await send("DELETE", address(box.value));
    } catch (error) {
      await tell(error);
    }
    location.reload();
  };

  // ---- uploads --------------------------------------------------------------------------------------------------------
  const list = $("uploads");
  let running = 0;
  let failures = 0;
  const line = (name) => {
    const item = document.createElement("li");
    const label = document.createElement("bdi");
    label.className = "label-of";
    label.textContent = name;
    const bar = document.createElement("progress");
    bar.setAttribute("aria-label", name);
    const state = document.createElement("span");
    item.append(label, bar, state);
    list.hidden = false;
    list.append(item);
    return { item, bar, state };
  };
  const put = (file, path, shown, replace) =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("PUT", address(path));
      for (const [name, value] of Object.entries(headers(replace ? {} : { "If-None-Match": "*" }))) request.setRequestHeader(name, value);
      request.upload.onprogress = (event) => {
        shown.bar.max = event.total || 1;
        shown.bar.value = event.loaded;
        shown.state.textContent = event.total ? `${Math.floor((100 * event.loaded) / event.total)} %` : "";
      };
      request.onload = () => {
        if (request.status < 300) return resolve();
        reject(Object.assign(new Error(why(request.status, request.responseText)), { status: request.status }));
      };
      request.onerror = () => reject(new Error(why(0, "")));
      request.send(file);
    });
  let toAll = null;
  const mayReplace = async (name) => {
    toAll ??= await ask("Replace files?", `${name} is there already. Replace it, and others that are?`, "Replace").then(Boolean);
    return toAll;
  };
  const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");
  const upload = async ({ file, path }) => {
    const shown = line(path);
    try {
      await put(file, encoded(path), shown, false).catch(async (error) => {
        if (error.status !== 412) throw error;
        if (!(await mayReplace(path))) return (shown.skipped = true);
        await put(file, encoded(path), shown, true);
      });
      shown.bar.remove();
      shown.state.textContent = shown.skipped ? "kept as it was" : "done";
      if (!shown.skipped) setTimeout(() => shown.item.remove(), 2000);
    } catch (error) {
      failures += 1;
      shown.bar.remove();
      shown.state.className = "badly";
      shown.state.textContent = error.message;
    }
  };
  const folders = async (paths) => {
    const all = new Set();
    for (const path of paths) {
      const names = path.split("/").slice(0, -1);
      names.forEach((_, at) => all.add(names.slice(0, at + 1).join("/")));
    }
    for (const folder of [...all].sort()) {
      // 405: it is there.
      await send("MKCOL", address(encoded(folder) + "/")).catch((error) => {
        if (error.status !== 405) throw error;
      });
    }
  };
  const uploadAll = async (files, empty = []) => {
    if (!files.length && !empty.length) return;
    running += 1;
    toAll = null;
    try {
      await folders([...files.map((one) => one.path), ...empty.map((path) => `${path}/`)]);
      const queue = [...files];
      const work = async () => {
        for (let one = queue.shift(); one; one = queue.shift()) await upload(one);
      };
      await Promise.all([work(), work(), work()]);
    } catch (error) {
      failures += 1;
      await tell(error);
    }
    running -= 1;
    if (!running && !failures) location.reload();
  };
  addEventListener("beforeunload", (event) => running && event.preventDefault());

  const picked = (input) => {
    uploadAll([...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name })));
    input.value = "";
  };
  $("pick-files").addEventListener("change", (event) => picked(event.target));
  $("pick-folder").addEventListener("change", (event) => picked(event.target));

  const walk = async (entry, files, empty) => {
    const path = entry.fullPath.replace(/^\//, "");
    if (entry.isFile) return files.push({ path, file: await new Promise((yes, no) => entry.file(yes, no)) });
    const reader = entry.createReader();
    let count = 0;
    for (;;) {
      const part = await new Promise((yes, no) => reader.readEntries(yes, no));
      if (!part.length) break;
      count += part.length;
      for (const one of part) await walk(one, files, empty);
    }
    if (!count) empty.push(path);
  };
  let depth = 0;
  const drop = (shown) => ($("drop").hidden = !shown);
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => hasFiles(event) && (depth++, drop(true)));
  addEventListener("dragleave", (event) => hasFiles(event) && --depth <= 0 && ((depth = 0), drop(false)));
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    drop(false);
    const [files, empty] = [[], []];
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.());
    const plain = [...event.dataTransfer.files].map((file) => ({ file, path: file.name }));
    if (entries.every(Boolean) && entries.length) {
      for (const entry of entries) await walk(entry, files, empty);
    } else {
      files.push(...plain);
    }
    uploadAll(files, empty);
  });

  const acts = {
    upload: () => $("pick-files").click(),
    "upload-folder": () => $("pick-folder").click(),
    make,
    rename,
    delete: remove,
  };
  document.addEventListener("click", (event) => acts[event.target.dataset?.act]?.());
})();
