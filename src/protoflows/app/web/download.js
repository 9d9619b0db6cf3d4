// A file that came through the page's own connection is handed to the browser's downloads.
(file) => {
  if (!file || !file.content) return;
  const url = URL.createObjectURL(new Blob([file.content], { type: file.type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = file.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
