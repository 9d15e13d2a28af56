// Calls /generate, cancels the job at the given block, and prints what /last then gives, as one line of JSON.
// node cancel.mjs ADDRESS ARGUMENTS-AS-JSON BLOCK
import { Client } from "@gradio/client";

const [address, args, block] = process.argv.slice(2);
const app = await Client.connect(address);
const job = app.submit("/generate", JSON.parse(args));
for await (const message of job) {
  if (message.type === "data" && message.data[2].block >= Number(block)) break;
}
await job.cancel();
let answer;
try {
  const [file, seed, report] = (await app.predict("/last")).data;
  const bytes = Buffer.from(await (await fetch(file.url)).arrayBuffer());
  answer = { name: file.orig_name, bytes: bytes.toString("base64"), seed, report, session: app.session_hash };
} catch (error) {
  answer = { error: error.message };
}
process.stdout.write(JSON.stringify(answer) + "\n", () => process.exit(0));
