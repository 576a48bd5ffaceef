package host

import (
	"net"
	"strconv"
	"testing"
)

func TestThePortIsOpenAtAddressesOfBothFamilies(t *testing.T) {
	listener, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	if only, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skip("this host has no IPv6")
	} else {
		only.Close()
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		connection, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Error(err)
			continue
		}
		connection.Close()
	}
}
