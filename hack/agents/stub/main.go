// Command stub replaces the models of coding agents. It implements the APIs of
// Anthropic (Messages), OpenAI (Responses and Chat Completions) and Google
// (streamGenerateContent), so that the real agents run on a development cluster without
// a key and with the same result each time.
//
// It answers with the steps of a script, each of which is a call of a tool that changes
// files, and then with DONE. Like a model, it derives the next step from the request
// alone: from the results of earlier calls, and from what the prompts say about them. So
// the next step shows whether an agent has lost its memory, or was rewound.
//
// Each session, named in the path, has a script and a log:
//
//	/s/NAME/v1/messages, /s/NAME/v1/responses, …   the models' APIs
//	PUT /s/NAME/script                             a Script as JSON
//	GET /s/NAME/log                                one Entry per line, oldest first
//	GET /log                                       the entries of all sessions
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
