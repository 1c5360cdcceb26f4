package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of one cluster.
type authority struct {
	dir  string
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// identity is the user that a certificate names, and the addresses at which it serves.
type identity struct {
	file   string // file name without extension, in the authority's folder
	user   string
	groups []string
	names  []string
	ips    []netip.Addr
}

// makeCertificates writes all keys and certificates of the cluster to dir, unless they
// exist: a restart must keep what clients already trust.
func makeCertificates(s settings, dir string) error {
	done := filepath.Join(dir, "complete")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(dir, "ca")
	if err != nil {
		return err
	}
	for _, id := range clusterIdentities(s) {
		if err := ca.issue(id); err != nil {
			return fmt.Errorf("certificate %s: %w", id.file, err)
		}
	}
	// The aggregation layer has its own authority: a client certificate of the cluster must
	// not be accepted as that of the API server's proxy.
	front, err := newAuthority(dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := front.issue(identity{file: "front-proxy-client", user: "front-proxy-client"}); err != nil {
		return err
	}
	if err := newServiceAccountKey(dir); err != nil {
		return err
	}
	return os.WriteFile(done, nil, 0o600)
}

// clusterIdentities lists the holders of certificates of the cluster's authority.
func clusterIdentities(s settings) []identity {
	ids := []identity{
		{
			file: "apiserver", user: "kube-apiserver",
			names: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			ips:   []netip.Addr{s.nodeIP(), s.apiIP(), netip.MustParseAddr("127.0.0.1")},
		},
		{file: "apiserver-kubelet-client", user: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
		{file: "admin", user: "clew-admin", groups: []string{"system:masters"}},
		{file: "kube-controller-manager", user: "system:kube-controller-manager"},
		{file: "kube-scheduler", user: "system:kube-scheduler"},
		{file: "kube-proxy", user: "system:kube-proxy"},
		{file: "coredns", user: "clew-devcluster:coredns"},
		{file: "local-path-provisioner", user: "clew-devcluster:local-path-provisioner"},
	}
	for _, n := range s.nodes() {
		ids = append(ids,
			identity{file: n.credential("kubelet-server"), user: "kubelet", names: []string{n.nodeName()}, ips: []netip.Addr{n.nodeIP()}},
			identity{file: n.credential("kubelet"), user: "system:node:" + n.nodeName(), groups: []string{"system:nodes"}})
	}
	return ids
}

func newAuthority(dir, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl, err := template(name)
	if err != nil {
		return nil, err
	}
	tmpl.IsCA, tmpl.BasicConstraintsValid = true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, name: name, cert: cert, key: key}
	return a, a.write(name, der, key)
}

// issue writes file.crt and file.key for id. A certificate with names or addresses is valid
// for servers as well as for clients.
func (a *authority) issue(id identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tmpl, err := template(id.user)
	if err != nil {
		return err
	}
	tmpl.Subject.Organization = id.groups
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(id.names)+len(id.ips) > 0 {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	tmpl.DNSNames = id.names
	for _, ip := range id.ips {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return a.write(id.file, der, key)
}

func (a *authority) write(name string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writePEM(filepath.Join(a.dir, name+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	return writeKey(filepath.Join(a.dir, name+".key"), key)
}

// template returns a certificate for a common name, valid for a year from yesterday, since
// clocks of virtual machines jump.
func template(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-24 * time.Hour),
		NotAfter:     now.Add(365 * 24 * time.Hour),
	}, nil
}

// newServiceAccountKey writes the key pair that signs service account tokens.
func newServiceAccountKey(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeKey(filepath.Join(dir, "service-account.key"), key); err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, "service-account.pub"), "PUBLIC KEY", der)
}

func writeKey(path string, key crypto.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// kubeconfigFor returns a kubeconfig with embedded certificates, so that it can be copied
// elsewhere on the machine.
func kubeconfigFor(s settings, pki, user string) ([]byte, error) {
	parts := map[string][]byte{}
	for _, file := range []string{"ca.crt", user + ".crt", user + ".key"} {
		data, err := os.ReadFile(filepath.Join(pki, file))
		if err != nil {
			return nil, err
		}
		parts[file] = data
	}
	return renderKubeconfig(s.name(), s.apiURL(), user, parts["ca.crt"], parts[user+".crt"], parts[user+".key"])
}
