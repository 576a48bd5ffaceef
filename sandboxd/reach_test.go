package main

import (
	"net"
	"strings"
	"testing"
)

func TestReachNamesTheAddressesThatTakeAConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	closed.Close()
	d := asAny(t)
	status, body := d.call("POST", "/v1/reach", strings.NewReader(`{"addresses": ["`+listener.Addr().String()+`", "`+nobody+`"], "seconds": 5}`))
	if want := `{"reached":["` + listener.Addr().String() + `"]}`; status != 200 || strings.TrimSpace(body) != want {
		t.Errorf("%d %s, not %s", status, body, want)
	}
}

func TestReachRefusesWhatItCanNotAsk(t *testing.T) {
	d := asAny(t)
	for _, body := range []string{"", `{"addresses": []}`, `{"addresses": [], "seconds": 11}`, `{"addresses": ["a","a","a","a","a","a","a","a","a"], "seconds": 1}`} {
		if status, said := d.call("POST", "/v1/reach", strings.NewReader(body)); status != 400 {
			t.Errorf("%q: %d %s", body, status, said)
		}
	}
}
