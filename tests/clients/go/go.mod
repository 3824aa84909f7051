module subscriber

go 1.25.0

require (
	github.com/nats-io/nats.go v1.47.0
	github.com/nats-io/nkeys v0.4.17
)

require (
	github.com/klauspost/compress v1.18.0 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	golang.org/x/crypto v0.52.0 // indirect
	golang.org/x/sys v0.45.0 // indirect
)
