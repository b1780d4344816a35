// Pause holds a pod's namespaces open. It does nothing, until it is told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// Process 1 of a namespace ignores signals it has no handler for.
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
