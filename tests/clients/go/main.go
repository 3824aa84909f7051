// A program around the lines in Go of docs/concepts/subscribing.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

func main() {
	var given struct{ URL, Seed, InboxPrefix, Domain, Stream, Consumer string }
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		log.Fatal(err)
	}
	// LINES
}
