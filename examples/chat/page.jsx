// The page: an ordinary useChat. The lines that let answers survive a reload are those with the transport.
import { useChat } from "@ai-sdk/react";
import { OutliveChatTransport } from "outlive/ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const id = location.pathname.slice(1) || "first";
const transport = new OutliveChatTransport({ model: "demo" });

function Chat({ before }) {
  const { messages, sendMessage, stop, status, error } = useChat({ id, transport, resume: true, messages: before });
  const [text, setText] = useState("");
  const busy = status === "submitted" || status === "streaming";

  const submit = (event) => {
    event.preventDefault();
    if (text) sendMessage({ text });
    setText("");
  };
  return (
    <main>
      {messages.map((message) => (
        <section key={message.id} data-role={message.role}>
          <h2>{message.role}</h2>
          {message.parts.map((part, index) => part.type === "text" && <p key={index}>{part.text}</p>)}
        </section>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={submit} data-status={status}>
        <input value={text} onChange={(event) => setText(event.target.value)} aria-label="Message" />
        {/* The keys make them two elements: one that became "Send" during its click would send. */}
        {busy ? <button key="stop" type="button" onClick={stop}>Stop</button> : <button key="send">Send</button>}
      </form>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Chat before={await transport.messages(id)} />);
