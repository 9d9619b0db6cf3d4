// A file is read in the browser and sent without its name; one that is too large is not sent at all.
const zone = element.querySelector(".pf-drop");
const input = element.querySelector("input[type=file]");
const said = element.querySelector(".pf-said");
const limit = Number(zone.dataset.limit);

function say(words) {
  said.textContent = words;
  said.hidden = !words;
}

function send(file) {
  if (!file) return;
  const megabytes = (file.size / 1048576).toFixed(1);
  if (file.size > limit) {
    say(`The file has ${megabytes} MB; at most ${limit / 1048576} MB are read.`);
    return;
  }
  say("");
  const reader = new FileReader();
  reader.onerror = () => say("The file cannot be read.");
  // An empty file gives "data:" alone; the type is left out, the server looks for itself.
  reader.onload = () =>
    trigger("upload", { data: "data:;base64," + String(reader.result).split(",")[1] });
  reader.readAsDataURL(file);
}

input.addEventListener("change", () => {
  send(input.files[0]);
  input.value = ""; // the same file may be chosen again
});
zone.addEventListener("dragover", (event) => {
  event.preventDefault();
  zone.classList.add("pf-hover");
});
zone.addEventListener("dragleave", () => zone.classList.remove("pf-hover"));
zone.addEventListener("drop", (event) => {
  event.preventDefault();
  zone.classList.remove("pf-hover");
  send(event.dataTransfer.files[0]);
});
