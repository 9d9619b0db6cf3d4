// Where everything stands in one column, what a press changed lies below what was pressed.
() => {
  const result = document.querySelector("WHERE");
  if (result && window.innerWidth < 700) result.scrollIntoView({ behavior: "smooth" });
}
