package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"os"
	"time"

	"gymtrain.dev/sandboxd/internal/config"
	"gymtrain.dev/sandboxd/internal/disk"
	"gymtrain.dev/sandboxd/internal/execs"
	"gymtrain.dev/sandboxd/internal/files"
	"gymtrain.dev/sandboxd/internal/host"
	"gymtrain.dev/sandboxd/internal/ipc"
	"gymtrain.dev/sandboxd/internal/procs"
	"gymtrain.dev/sandboxd/internal/server"
)

// farewell is how long running calls get to end their answers.
const farewell = time.Second

// serve runs until a reset, until the sandbox takes too much of the node's disk, or, where it isn't the first process,
// until it is told to end.
func serve(places disk.Places) error {
	settings, err := config.FromEnvironment(os.LookupEnv)
	if err != nil {
		return err
	}
	environment := config.WithoutOwn(os.Environ())
	host.Prepare()
	// After a crash nobody has emptied them.
	if err := files.Wipe(settings.Wipe); err != nil {
		return fmt.Errorf("a folder of GYMTRAIN_SANDBOX_WIPE still holds what an earlier use left: %w", err)
	}
	if settings.WipeIPC {
		// Without the lists nobody can look. That is no reason not to start: a reset tells of it.
		if err := ipc.Empty(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the IPC namespace still holds what an earlier use left: %w", err)
		}
	}
	table := procs.NewTable()
	told := host.Watch(table.Reap)
	runner := execs.NewRunner(table, environment, settings.MaxOutput)
	reset := make(chan struct{}, 1)
	handler := server.New(server.Options{Version: version, Token: settings.Token, Runner: runner, Reset: reset})
	listener, err := host.Listen(settings.Port)
	if err != nil {
		return err
	}
	daemon := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	watch := disk.New(places, int64(settings.Disk))
	failed := make(chan error, 1)
	go func() { failed <- daemon.Serve(listener) }()
	log.Printf("gymtrain-sandboxd %s listens on %s", version, listener.Addr())
	var full *disk.Full
	select {
	case err := <-failed:
		return err
	case full = <-watch.Start():
		log.Printf("ending the sandbox: %v", full)
	case <-told:
		log.Print("told to end")
	case <-reset:
		log.Print("reset: killing everything")
	}
	runner.End()
	left := end(daemon, table, settings)
	watch.Free(full)
	if full != nil {
		return full
	}
	return left
}

// end leaves nothing running and nothing behind. An error says that something may be left: the pod serves nobody then.
func end(daemon *http.Server, table *procs.Table, settings config.Settings) error {
	if err := table.KillAll(); err != nil {
		log.Print(err)
	}
	limit, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if err := daemon.Shutdown(limit); errors.Is(err, context.DeadlineExceeded) {
		daemon.Close()
	}
	left := files.Wipe(settings.Wipe)
	if settings.WipeIPC {
		left = errors.Join(left, ipc.Empty())
	}
	return left
}
