// Strokes by mouse, pen or finger; only the strokes are sent, on a transparent ground.
const canvas = element.querySelector("canvas");
const pen = canvas.getContext("2d");
let last = null;

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [
    ((event.clientX - box.left) * canvas.width) / box.width,
    ((event.clientY - box.top) * canvas.height) / box.height,
  ];
}

function stroke(to) {
  pen.strokeStyle = canvas.dataset.ink;
  pen.lineWidth = canvas.width / 11;
  pen.lineCap = pen.lineJoin = "round";
  pen.beginPath();
  pen.moveTo(...(last || to));
  pen.lineTo(...to);
  pen.stroke();
  last = to;
}

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  stroke(place(event));
  event.preventDefault();
});
canvas.addEventListener("pointermove", (event) => {
  if (last) stroke(place(event));
});
for (const end of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(end, () => (last = null));
}
element.querySelector(".pf-wipe").addEventListener("click", () => {
  pen.clearRect(0, 0, canvas.width, canvas.height);
});
element.querySelector(".pf-send").addEventListener("click", () => {
  trigger("draw", { data: canvas.toDataURL("image/png") });
});
