// Package controller holds the controllers of Clew's four kinds, one package
// each, and the tests of what they do together against a real API server.
package controller
