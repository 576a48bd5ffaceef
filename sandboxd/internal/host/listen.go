package host

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"time"
)

const (
	tcpUserTimeout = 18
	// gone is after how many milliseconds without an acknowledgement a caller counts as gone.
	gone = 30_000
)

// Listen opens the daemon's port. A caller whose node died is noticed, though it never closed its connection.
func Listen(port int) (net.Listener, error) {
	settings := net.ListenConfig{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control: func(_, _ string, connection syscall.RawConn) error {
			return connection.Control(func(descriptor uintptr) {
				_ = syscall.SetsockoptInt(int(descriptor), syscall.IPPROTO_TCP, tcpUserTimeout, gone)
			})
		},
	}
	listener, err := settings.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("port %d: %w; set GYMTRAIN_SANDBOX_PORT to a free one", port, err)
	}
	return listener, nil
}
