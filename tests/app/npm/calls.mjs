// Asks /generate for one video after another, so that many calls cost one start. Each line of standard input is
// {"headers": {…}, "request": {…}} as JSON; each gets a line with what the program that calls would read and have.
// node calls.mjs ADDRESS
import { createInterface } from "node:readline";
import { Client } from "@gradio/client";

const [address] = process.argv.slice(2);
const clients = {};
for await (const line of createInterface({ input: process.stdin })) {
  const { headers, request } = JSON.parse(line);
  let answer;
  try {
    const app = (clients[JSON.stringify(headers)] ??= await Client.connect(address, { headers }));
    const [file, , report] = (await app.predict("/generate", request)).data;
    answer = { words: report.problem ?? null, url: file.url };
  } catch (error) {
    answer = { words: error.message, url: null };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
process.exit(0);
