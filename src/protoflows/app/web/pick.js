// A press on any picture that carries data-pick is reported with its value.
element.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-pick]");
  if (!pressed || !element.contains(pressed)) return;
  if (pressed.hasAttribute("aria-pressed")) {
    element.querySelectorAll("[aria-pressed=true]").forEach((other) => {
      other.setAttribute("aria-pressed", "false");
    });
    pressed.setAttribute("aria-pressed", "true");
  }
  trigger("pick", { value: pressed.dataset.pick });
});
