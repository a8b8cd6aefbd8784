"use strict"
// Every few seconds, while someone looks: the part of the page that changes is read again, and replaced if it differs.
const EVERY_MS = 5000
let shown = document.getElementById("live").innerHTML
async function look() {
  if (document.hidden || document.getElementById("live").contains(document.activeElement)) return
  const answer = await fetch(location.href, {cache: "no-store"})
  if (!answer.ok) return
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live")
  if (!found || found.innerHTML === shown) return
  shown = found.innerHTML
  document.getElementById("live").replaceWith(found)
}
setInterval(() => look().catch(() => {}), EVERY_MS)
