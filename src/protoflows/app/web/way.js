// All frames are there already: the slider shows one and hides the others, without the server.
element.addEventListener("input", (event) => {
  const slider = event.target.closest("input[type=range]");
  if (!slider) return;
  const way = slider.closest(".pf-way");
  way.querySelectorAll("[data-frame]").forEach((part) => {
    part.hidden = part.dataset.frame !== slider.value;
  });
  const share = (100 * slider.value) / slider.max;
  way.querySelectorAll(".pf-cursor").forEach((line) => {
    line.style.left = `${share}%`;
  });
});
