// Command stub answers in place of the models that coding agents ask: it
// speaks the APIs of Anthropic (Messages), OpenAI (Responses and Chat
// Completions) and Google (streamGenerateContent), so that the real agents run
// on a development cluster without a key and always do the same.
//
// What it answers is a script: step 1, step 2, … up to the last, each one call
// of a tool that changes files, then DONE. Which step is next it reads from
// the request alone, as a model does: from the results of earlier calls, and
// from what the prompts tell of them. So an agent that has lost its memory, or
// had it taken back, gives itself away by what it does next.
//
// Each session, named in the path, has its script and its log:
//
//	/s/NAME/v1/messages, /s/NAME/v1/responses, …   what agents ask
//	PUT /s/NAME/script                             a Script as JSON
//	GET /s/NAME/log                                an Entry a line, oldest first
//	GET /log                                       those of all sessions
package main

import (
	"flag"
	"log"
	"net/http"
	"time"
)

func main() {
	address := flag.String("address", ":8080", "address to listen on")
	flag.Parse()
	server := &http.Server{
		Addr:              *address,
		Handler:           newStub().handler(),
		ReadHeaderTimeout: 10 * time.Second,
	}
	log.Printf("answering on %s", *address)
	log.Fatal(server.ListenAndServe())
}
