package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"golang.org/x/net/http2"
)

// strangers is a server as it is for strangers, who get no further than its front.
func strangers(t *testing.T) (address string) {
	t.Helper()
	g := gomega.NewWithT(t)
	certificate, err := tls.LoadX509KeyPair(filepath.Join(serving, "tls.crt"), filepath.Join(serving, "tls.key"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	server := newTLSServer(http.NotFoundHandler(), func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificate, nil }, slog.DiscardHandler)
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// hello opens a connection and says what each begins with.
func hello(t *testing.T, address string) (*tls.Conn, *http2.Framer) {
	t.Helper()
	g := gomega.NewWithT(t)
	connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { connection.Close() })
	framer := http2.NewFramer(connection, connection)
	_, err = io.WriteString(connection, http2.ClientPreface)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(framer.WriteSettings()).To(gomega.Succeed())
	return connection, framer
}

// ended waits until the server has ended a connection.
func ended(t *testing.T, connection net.Conn) {
	t.Helper()
	_ = connection.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, connection); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the server keeps what came, and waits for the rest")
	}
}

// One byte of a request's headers can stand for a whole field, which takes many.
func TestHeadersThatDoNotEndEndTheirConnection(t *testing.T) {
	g := gomega.NewWithT(t)
	connection, framer := hello(t, strangers(t))
	fields := bytes.Repeat([]byte{0xbc}, 14_000) // "via", from the table that both sides know
	g.Expect(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields})).To(gomega.Succeed())
	_ = framer.WriteContinuation(1, false, fields) // may be closed already
	ended(t, connection)
}

// Nine bytes announce a frame, and the room for it is made before it comes.
func TestTheRoomForAFrameThatIsAnnouncedIsSmall(t *testing.T) {
	g := gomega.NewWithT(t)
	connection, _ := hello(t, strangers(t))
	_, err := connection.Write([]byte{0x0f, 0xff, 0xff, byte(http2.FrameHeaders), 0, 0, 0, 0, 1})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	ended(t, connection)
}

// What is sent to a request that nobody reads yet has to be kept.
func TestWhatTheServerAdvertisesFitsItsMemory(t *testing.T) {
	g := gomega.NewWithT(t)
	connection, framer := hello(t, strangers(t))
	_ = connection.SetReadDeadline(time.Now().Add(20 * time.Second))
	frame, err := framer.ReadFrame()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	said := map[http2.SettingID]uint32{}
	_ = frame.(*http2.SettingsFrame).ForeachSetting(func(s http2.Setting) error { said[s.ID] = s.Val; return nil })
	g.Expect(said).To(gomega.HaveKeyWithValue(http2.SettingInitialWindowSize, gomega.BeNumerically("<=", 64<<10)))
	g.Expect(said).To(gomega.HaveKeyWithValue(http2.SettingMaxFrameSize, gomega.BeNumerically("<=", 16<<10)))
	g.Expect(said).To(gomega.HaveKeyWithValue(http2.SettingMaxHeaderListSize, gomega.BeNumerically("<=", 65<<10)))
	// As many as clients take for granted before they have read this: a request that
	// is one too many would fail, if it has a body.
	g.Expect(said).To(gomega.HaveKeyWithValue(http2.SettingMaxConcurrentStreams, gomega.BeEquivalentTo(100)))
}
